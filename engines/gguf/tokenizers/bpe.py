"""Byte-level byte-pair encoding (``tokenizer.ggml.model`` "gpt2").

Text is cut into words (:mod:`.pre`) and each word's UTF-8 bytes are written as 256 printable characters, both by the
`tokenizers` library; the merges join those. They are not left to the library, whose tables take 175 bytes a token where ours
take 60. Source: the GPT-2 encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from engines.errors import CheckpointError
from engines.gguf.tokenizers.index import token_finder
from engines.gguf.tokenizers.merging import CACHED_LENGTH, CACHED_PIECES, CACHED_WORDS, merged
from engines.gguf.tokenizers.pre import pre_rule
from engines.gguf.tokenizers.texts import TokenTexts
from engines.gguf.tokenizers.vocabulary import PREFIX, TokenType, Vocabulary, encoded_texts

__all__ = ["BytePairModel", "byte_characters"]


def byte_characters() -> dict[int, str]:
    """Byte → the character that writes it: itself where Latin-1 prints it, else the next free one from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (byte for byte in range(256) if byte not in printable)
    written = {byte: chr(0x100 + place) for place, byte in enumerate(hidden)}
    return written | {byte: chr(byte) for byte in printable}


_BYTE_OF = {character: byte for byte, character in byte_characters().items()}


class BytePairModel:
    """Turns text without special tokens into ids, and ids into bytes. Threads may share it."""

    add_space_prefix = False

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        """UnsupportedModel for an unknown pre-tokenizer, CheckpointError for merges that are no pairs."""
        rule = pre_rule(metadata.get(PREFIX + "pre"))
        self.add_bos = rule.add_bos
        self._vocabulary = vocabulary
        self._ignores_merges = rule.ignore_merges
        # Only normal tokens are for merges to make: a control token spelled out in text stays text.
        self._find = lru_cache(CACHED_PIECES)(token_finder(vocabulary.texts, hidden=vocabulary.abnormal))
        self._rank = token_finder(_merges(metadata))
        # Each pattern's matches and what is between them are words of their own: "isolated".
        cuts: list[Any] = [Split(Regex(pattern), "isolated") for pattern in rule.patterns]
        self._words = Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)]).pre_tokenize_str
        # What str.translate leaves out: bytes that are no token join no merge and have no id.
        self._unknown = {ord(character): None for character in _BYTE_OF if self._find(character) is None}
        self._cached_cost = lru_cache(CACHED_PIECES)(self._cost)
        self._cached_merge = lru_cache(CACHED_WORDS)(self._merge)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of ``text``. Bytes that the vocabulary has no token for are left out, as in the reference."""
        del at_start  # only SentencePiece puts a space before the first word
        ids: list[int] = []
        for word, _ in self._words(text):
            ids += self._cached_merge(word) if len(word) <= CACHED_LENGTH else self._merge(word)
        return ids

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to the output."""
        text = self._vocabulary.texts[id]
        kind = self._vocabulary.types[id]
        if kind == TokenType.UNUSED:
            return b""
        if kind != TokenType.NORMAL:
            return self._vocabulary.texts.encoded(id)
        try:
            return bytes([_BYTE_OF[character] for character in text])
        except KeyError:  # a token that is not written in byte characters stands for itself
            return self._vocabulary.texts.encoded(id)

    def _merge(self, word: str) -> tuple[int, ...]:
        if self._ignores_merges and (id := self._find(word)) is not None:
            return (id,)
        pieces = merged(word.translate(self._unknown), self._cached_cost, " ")
        return tuple(id for piece in pieces if (id := self._find(piece)) is not None)

    def _cost(self, merge: str) -> int | None:
        """The rank of the merge, unless what it makes is no token."""
        rank = self._rank(merge)
        return None if rank is None or self._find(merge.replace(" ", "")) is None else rank


def _merges(metadata: Mapping[str, Any]) -> TokenTexts:
    """Merges by rank, as the file writes them: two tokens with a space between them."""
    merges = TokenTexts(encoded_texts(metadata, PREFIX + "merges"))
    for merge in merges.all_encoded():
        if b" " not in merge:
            raise CheckpointError(f"tokenizer.ggml.merges has {merge.decode()!r}, which is not two tokens")
    return merges
