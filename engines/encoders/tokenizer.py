"""Texts to token ids with what the model wants around them, one text or a pair.

Three sources: ``tokenizer.json``; GGUF metadata of WordPiece (``tokenizer.ggml.model`` "bert") and Unigram ("t5"), built by
the `tokenizers` library; and GGUF metadata of the other kinds, which :class:`engines.gguf.tokenizer.GgufTokenizer` reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

from engines.errors import CheckpointError
from engines.gguf.tokenizer import GgufTokenizer
from engines.gguf.tokenizers.unigram import normaliser, unigram_library
from engines.gguf.tokenizers.vocabulary import PREFIX, SPACE, TokenType, Vocabulary, metadata_flag
from engines.gguf.tokenizers.wordpiece import word_piece_library

__all__ = ["Frame", "PairFrame", "TextTokenizer", "gguf_tokenizer", "json_tokenizer"]

_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_ENCODERS: Final = frozenset({"bert", "jina-bert-v2", "modern-bert", "nomic-bert", "nomic-bert-moe"})
_TOGETHER: Final = 64  # texts handed to the library at a time: it tokenises them on threads of its own


class _Splitter(Protocol):
    """Text to ids, nothing around them."""

    def __call__(self, texts: Sequence[str]) -> list[list[int]]: ...


@dataclass(frozen=True)
class Frame:
    """Ids before and after one text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        return len(self.before) + len(self.after)

    @property
    def ids(self) -> tuple[int, ...]:
        return (*self.before, *self.after)

    def around(self, ids: Sequence[int]) -> list[int]:
        return [*self.before, *ids, *self.after]


@dataclass(frozen=True)
class PairFrame:
    """Ids before, between and after two texts, and their token types."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    second_type: int = 0  # token type of the second text and of what is after it

    @property
    def tokens(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    @property
    def ids(self) -> tuple[int, ...]:
        return (*self.before, *self.between, *self.after)

    def around(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """The ids, and their token types."""
        head = [*self.before, *first, *self.between]
        tail = [*second, *self.after]
        return head + tail, [0] * len(head) + [self.second_type] * len(tail)


class TextTokenizer:
    """Fixed at construction; threads may share it.

    Attributes:
        single: what goes around one text.
        pair: what goes around two; None where the tokenizer does not say.
        vocab_size: ids are below it.
        control: the ids of a text in which control tokens are spelled out; nothing is put around it. For templates, never for
            what a client sent.
        find: the id of a token, None where there is none.
    """

    def __init__(
        self,
        split: _Splitter,
        single: Frame,
        pair: PairFrame | None,
        vocab_size: int,
        control: Callable[[str], list[int]],
        find: Callable[[str], int | None],
    ) -> None:
        self._split = split
        self.single = single
        self.pair = pair
        self.vocab_size = vocab_size
        self.control = control
        self.find = find

    def split(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, with nothing around them; control tokens spelled out in one are text where the tokenizer can
        tell them apart. Lone surrogates become U+FFFD."""
        return self._split([_encodable(text) for text in texts])


def _encodable(text: str) -> str:
    if _SURROGATES.search(text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


# --- tokenizer.json -------------------------------------------------------------------------------------------------


def json_tokenizer(directory: Path) -> TextTokenizer:
    """CheckpointError when the directory has no ``tokenizer.json``, or it cannot be read."""
    path = directory / "tokenizer.json"
    if not path.exists():
        raise CheckpointError(f"{directory}: has no tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"{path}: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    try:
        single, pair = _single_frame(tokenizer), _pair_frame(tokenizer)
    except Exception as error:  # as above: a vocabulary without a token for what is unknown
        raise CheckpointError(f"{path}: {error}") from error
    # Not how many there are: ids may have gaps.
    vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return _of_library(tokenizer, single, pair, vocab_size)


def _of_library(tokenizer: Tokenizer, single: Frame, pair: PairFrame | None, vocab_size: int) -> TextTokenizer:
    def control(text: str) -> list[int]:
        spelled = Tokenizer.from_str(tokenizer.to_str())  # rarely, and for as long as this call: of its own setting
        spelled.encode_special_tokens = False
        ids: list[int] = spelled.encode(text, add_special_tokens=False).ids
        return ids

    tokenizer.encode_special_tokens = True  # spelled out in a text they are text
    return TextTokenizer(_library_split(tokenizer), single, pair, vocab_size, control, tokenizer.token_to_id)


def _library_split(tokenizer: Tokenizer) -> _Splitter:
    def split(texts: Sequence[str]) -> list[list[int]]:
        if len(texts) == 1:
            return [tokenizer.encode(texts[0], add_special_tokens=False).ids]
        ids: list[list[int]] = []
        for start in range(0, len(texts), _TOGETHER):
            part = list(texts[start : start + _TOGETHER])
            ids += [encoding.ids for encoding in tokenizer.encode_batch_fast(part, add_special_tokens=False)]
        return ids

    return split


def _single_frame(tokenizer: Tokenizer) -> Frame:
    """What the post-processor puts around one text: it is asked with one."""
    encoding = tokenizer.encode("a", add_special_tokens=True)
    places = [place for place, sequence in enumerate(encoding.sequence_ids) if sequence == 0]
    if not places:
        return Frame()
    return Frame(tuple(encoding.ids[: places[0]]), tuple(encoding.ids[places[-1] + 1 :]))


def _pair_frame(tokenizer: Tokenizer) -> PairFrame | None:
    encoding = tokenizer.encode("a", "b", add_special_tokens=True)
    first = [place for place, sequence in enumerate(encoding.sequence_ids) if sequence == 0]
    second = [place for place, sequence in enumerate(encoding.sequence_ids) if sequence == 1]
    if not first or not second or first[-1] > second[0]:
        return None
    ids = encoding.ids
    return PairFrame(
        tuple(ids[: first[0]]),
        tuple(ids[first[-1] + 1 : second[0]]),
        tuple(ids[second[-1] + 1 :]),
        encoding.type_ids[second[0]],
    )


# --- GGUF metadata --------------------------------------------------------------------------------------------------


def gguf_tokenizer(metadata: Mapping[str, Any]) -> TextTokenizer:
    """CheckpointError for metadata that is missing or does not fit together, UnsupportedModel for an unknown kind."""
    kind = metadata.get(PREFIX + "model")
    if kind == "bert":
        return _word_piece(metadata)
    if kind == "t5":
        return _unigram(metadata)
    tokenizer = GgufTokenizer.from_metadata(metadata)
    before = (tokenizer.bos_id,) if tokenizer.add_bos and tokenizer.bos_id is not None else ()
    after = (tokenizer.eos_id,) if tokenizer.add_eos and tokenizer.eos_id is not None else ()
    pair = None
    architecture = metadata.get("general.architecture")
    if architecture in _ENCODERS:  # whose tokenizers put something at both ends, whatever the file says of BOS and EOS
        begin, end = _number(metadata, "cls_token_id", tokenizer.bos_id), _separator(metadata, tokenizer.eos_id)
        before = () if begin is None else (begin,)
        after = () if end is None else (end,)
        # RoBERTa's tokenizers, which Jina's are, have two separators between two texts.
        pair = PairFrame(before, after if architecture == "modern-bert" else after * 2, after)

    def split(texts: Sequence[str]) -> list[list[int]]:
        return [tokenizer.encode(text, add_bos=False, add_eos=False) for text in texts]

    def control(text: str) -> list[int]:
        return tokenizer.encode(text, add_bos=False, add_eos=False, parse_special=True)

    def find(text: str) -> int | None:
        ids = control(text)
        return ids[0] if len(ids) == 1 else None

    return TextTokenizer(split, Frame(before, after), pair, tokenizer.vocab_size, control, find)


def _word_piece(metadata: Mapping[str, Any]) -> TextTokenizer:
    """BERT's."""
    vocabulary = _vocabulary(metadata, {"bos": 101, "eos": 102, "unknown": 100})
    tokenizer = word_piece_library(metadata, vocabulary)
    begin = _known(_number(metadata, "cls_token_id", vocabulary.bos_id), "bos")
    end = _known(_separator(metadata, vocabulary.eos_id), "seperator")
    pair = PairFrame((begin,), (end,), (end,), 1)
    return _of_library(tokenizer, Frame((begin,), (end,)), pair, len(vocabulary.texts))


def _unigram(metadata: Mapping[str, Any]) -> TextTokenizer:
    """SentencePiece's unigram model, as XLM-R has it."""
    vocabulary = _vocabulary(metadata, {"bos": 0, "eos": 2, "unknown": 3})
    tokenizer = unigram_library(vocabulary)
    steps: list[Any] = []
    if (own := normaliser(metadata)) is not None:
        steps.append(own)
    if metadata_flag(metadata, PREFIX + "remove_extra_whitespaces") is not False:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    prefix = metadata_flag(metadata, PREFIX + "add_space_prefix") is not False
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "always" if prefix else "never")
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in vocabulary.of_type(TokenType.USER_DEFINED)])
    begin, end = _known(vocabulary.bos_id, "bos"), _known(vocabulary.eos_id, "eos")
    if metadata_flag(metadata, PREFIX + "add_bos_token") is False:
        return _of_library(tokenizer, Frame((), (end,)), None, len(vocabulary.texts))
    pair = PairFrame((begin,), (end, end), (end,))
    return _of_library(tokenizer, Frame((begin,), (end,)), pair, len(vocabulary.texts))


def _vocabulary(metadata: Mapping[str, Any], defaults: Mapping[str, int]) -> Vocabulary:
    ids = {f"{PREFIX}{name}_token_id": id for name, id in defaults.items()}
    return Vocabulary.from_metadata({**ids, **{key: metadata[key] for key in metadata}})


def _separator(metadata: Mapping[str, Any], default: int | None) -> int | None:
    """Its key is misspelt in GGUF."""
    return _number(metadata, "seperator_token_id", _number(metadata, "separator_token_id", default))


def _number(metadata: Mapping[str, Any], key: str, default: int | None) -> int | None:
    value = metadata.get(PREFIX + key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _known(id: int | None, name: str) -> int:
    if id is None:
        raise CheckpointError(f"tokenizer.ggml.{name}_token_id is missing")
    return id
