"""Tokenizers of checkpoints, built from headers alone and kept while they are asked for. No MLX, no weights.

A simulated model has no vocabulary: its tokens are words (see :class:`WordTokens`).
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

from engines.errors import CheckpointError, EngineError, GgufFormatError, InvalidField
from engines.wire import DecodeTokens, EncodeChat, EncodeText, TokenizerAnswer, TokenizerRequest
from engines.wire import TokenizerSource as Source

if TYPE_CHECKING:
    from engines.gguf.tokenizer import GgufTokenizer
    from engines.text.chat_prompt import ChatEncoder

__all__ = ["TextTokens", "TokenizerCache", "WordTokens", "answer", "build"]

BUILT_TOKENIZERS = 4  # some 10 MiB with 49 thousand tokens, 60 MiB with 262 thousand

_OWN_WORD = re.compile(r"w(0|[1-9]\d{0,5})")
_OTHER_WORDS = 1_000_000  # ids of words that are not the model's own begin here


class TextTokens(Protocol):
    """What answers requests about one model's tokens. Threads may share it."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...

    def encode_chat(self, chat: EncodeChat) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...

    def token_text(self, token: int) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...


def answer(tokenizer: TextTokens, request: TokenizerRequest) -> TokenizerAnswer:
    """What is asked of this tokenizer. InvalidField, or what a template raises."""
    match request.what:
        case DecodeTokens(tokens=tokens):
            size = tokenizer.vocab_size
            for position, token in enumerate(tokens):
                if not 0 <= token < size:
                    field = f"tokens[{position}]"
                    raise InvalidField(f"{field} is {token}; it must be an id from 0 to {size - 1}", param=field)
            return TokenizerAnswer(text=tokenizer.decode(tokens))
        case EncodeText(text=text, add_special=add_special, parse_special=parse_special):
            ids = tokenizer.encode(text, add_special=add_special, parse_special=parse_special)
        case EncodeChat():
            ids = tokenizer.encode_chat(request.what)
    return TokenizerAnswer(
        tokens=tuple(ids),
        texts=tuple(map(tokenizer.token_text, ids)) if request.texts else (),
        pieces=tuple(map(tokenizer.token_bytes, ids)) if request.pieces else (),
    )


def build(source: Source) -> TextTokens:
    """CheckpointError and UnsupportedModel say which file and what in it; OSError where it cannot be read."""
    if source.path is None:
        return WordTokens()
    # Here: a process that only ever counts words of simulated models does without these.
    from engines.gguf.tokenizer import GgufTokenizer
    from engines.header import read_header
    from engines.text.chat_prompt import ChatEncoder

    header = read_header(source.path)
    try:
        tokenizer = GgufTokenizer.from_metadata(header.metadata)
        return _GgufTokens(tokenizer, ChatEncoder(tokenizer))
    except GgufFormatError:
        raise
    except CheckpointError as error:
        raise type(error)(f"{header.path}: {error.message}") from error


class _GgufTokens:
    """A checkpoint's tokenizer and template, which a worker of the same file has too."""

    def __init__(self, tokenizer: GgufTokenizer, chat: ChatEncoder) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self.vocab_size = tokenizer.vocab_size
        self.token_text = tokenizer.token_text
        self.token_bytes = tokenizer.token_bytes

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return self._tokenizer.encode(text, add_bos=None if add_special else False, parse_special=parse_special)

    def encode_chat(self, chat: EncodeChat) -> list[int]:
        add_bos = None if chat.add_special else False
        encoded = self._chat.encode(chat.prompt, chat.tools, chat.reasoning, add_bos=add_bos, continues=chat.continues)
        return encoded.tokens

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special=False)


class WordTokens:
    """A simulated model's: every word is a token, as its engine counts them, and ids follow from the words alone.

    The words it answers with, ``w0`` to ``w999999``, have their numbers as ids. Other words have larger ids made of their
    letters, which do not lead back to them: such an id is decoded as ``w`` and its number.
    """

    vocab_size = 2**31

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(map(_word_id, text.split()))

    def encode_chat(self, chat: EncodeChat) -> list[int]:
        return [_word_id(word) for message in chat.prompt.messages for word in (message.content or "").split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(self.token_text, tokens))

    def token_text(self, token: int) -> str:
        return f"w{token}"

    def token_bytes(self, token: int) -> bytes:
        return self.token_text(token).encode()


def _word_id(word: str) -> int:
    own = _OWN_WORD.fullmatch(word)
    if own is not None:
        return int(own[1])
    return _OTHER_WORDS + crc32(word.encode("utf-8", "surrogatepass")) % (WordTokens.vocab_size - _OTHER_WORDS)


class TokenizerCache:
    """The tokenizers asked for last, each built once however many ask for it at a time. Any thread may call.

    What could not be built is not kept: the next request tries again.
    """

    def __init__(self, limit: int = BUILT_TOKENIZERS, build: Callable[[Source], TextTokens] = build) -> None:
        self._limit = limit
        self._build = build
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Future[TextTokens]] = OrderedDict()  # by key; the most recently used one last

    def get(self, source: Source) -> Future[TextTokens]:
        """The tokenizer, being built by the calling thread if nobody has asked for it before, else by the one who has.

        The future may end with what ``build`` raises.
        """
        with self._lock:
            known = self._entries.get(source.key)
            if known is not None:
                self._entries.move_to_end(source.key)
                return known
            future: Future[TextTokens] = Future()
            self._entries[source.key] = future
            self._drop_oldest()
        try:
            built = self._build(source)
        except (EngineError, OSError) as error:
            self._fail(source.key, future, error)
        except BaseException as error:
            self._fail(source.key, future, error)
            raise
        else:
            future.set_result(built)
        return future

    def _fail(self, key: str, future: Future[TextTokens], error: BaseException) -> None:
        with self._lock:
            if self._entries.get(key) is future:
                del self._entries[key]
        future.set_exception(error)

    def _drop_oldest(self) -> None:
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)  # whoever waits for it has its future
