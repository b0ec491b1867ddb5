"""SentencePiece's unigram model (``tokenizer.ggml.model`` "t5"), by the `tokenizers` library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import Unigram
from tokenizers.normalizers import Precompiled

from engines.errors import CheckpointError
from engines.gguf.tokenizers.vocabulary import PREFIX, SPACE, TokenType, Vocabulary, byte_of, metadata_flag
from engines.header import GgufArray

__all__ = ["UnigramModel", "normaliser", "unigram_library"]

_OFF_TEXT = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.BYTE)
_SPACES = re.compile(" {2,}")


def unigram_library(vocabulary: Vocabulary) -> Tokenizer:
    """The library's tokenizer, with neither normaliser nor pre-tokenizer: that must be Metaspace, which cuts before each space.

    So control tokens spelled out in a text are text: their pieces have a space inside, which no word has. CheckpointError if
    there are no scores or no unknown token.
    """
    if vocabulary.scores is None:
        raise CheckpointError("tokenizer.ggml.scores is missing: a unigram tokenizer cannot work without")
    if vocabulary.unknown_id is None:
        raise CheckpointError("tokenizer.ggml.unknown_token_id is missing")
    texts = [
        f"{SPACE}{SPACE}{id}" if vocabulary.types[id] in _OFF_TEXT else text for id, text in enumerate(vocabulary.texts)
    ]
    return Tokenizer(Unigram(list(zip(texts, vocabulary.scores, strict=False)), vocabulary.unknown_id, False))


def normaliser(metadata: Mapping[str, Any]) -> Precompiled | None:
    """The file's own rules of which characters become which; None where it has none."""
    charsmap = metadata.get(PREFIX + "precompiled_charsmap")
    if isinstance(charsmap, GgufArray) and len(charsmap):
        return Precompiled(bytes(value & 0xFF for value in charsmap.integers()))
    return None


class UnigramModel:
    """Turns text without special tokens into ids, and ids into bytes. Threads may share it.

    Where the vocabulary has a token for each byte, what has no piece becomes bytes; else it is the unknown token.
    """

    add_bos = False
    always_bos = False

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        """CheckpointError as :func:`unigram_library`."""
        self.add_space_prefix = metadata_flag(metadata, PREFIX + "add_space_prefix") is not False
        self._removes_spaces = metadata_flag(metadata, PREFIX + "remove_extra_whitespaces") is not False
        self._vocabulary = vocabulary
        self._normaliser = normaliser(metadata)
        tokenizer = unigram_library(vocabulary)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "never")
        self._encode = tokenizer.encode
        named = {byte_of(text): id for text, id in vocabulary.of_type(TokenType.BYTE).items()}
        self._bytes = [named[byte] for byte in range(256)] if all(byte in named for byte in range(256)) else None

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of ``text``; ``at_start`` says that it begins the prompt or follows a special token."""
        if self._normaliser is not None:
            text = self._normaliser.normalize_str(text)
        if self._removes_spaces:
            text = _SPACES.sub(" ", text).strip(" ")
        if not text:
            return []
        if self.add_space_prefix and at_start:
            text = " " + text
        text = text.replace(" ", SPACE)
        encoding = self._encode(text, add_special_tokens=False)
        if self._bytes is None or self._vocabulary.unknown_id not in encoding.ids:
            ids: list[int] = encoding.ids
            return ids
        return self._with_bytes(text, encoding.ids, encoding.offsets)

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to the output."""
        return self._vocabulary.plain_bytes(id)

    def _with_bytes(self, text: str, ids: list[int], spans: list[tuple[int, int]]) -> list[int]:
        assert self._bytes is not None
        filled: list[int] = []
        for id, (start, end) in zip(ids, spans, strict=True):
            if id == self._vocabulary.unknown_id:
                filled += [self._bytes[byte] for byte in text[start:end].replace(SPACE, " ").encode()]
            else:
                filled.append(id)
        return filled
