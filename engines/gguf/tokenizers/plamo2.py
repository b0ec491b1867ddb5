"""PLaMo 2's unigram tokenizer (``tokenizer.ggml.model`` "plamo2"): the cheapest way to write a text in tokens, or in bytes.

It reads from the end: the cost of a place is that of a token there and of the place behind it; of equal costs the longest token
wins. Scores are whole ten-thousandths, and a character written in its bytes costs a thousand. Source: PLaMo 2's published
tokenizer, as llama.cpp describes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, isfinite
from typing import Any

from engines.errors import CheckpointError
from engines.gguf.tokenizers.index import token_finder
from engines.gguf.tokenizers.prefixes import prefix_lengths
from engines.gguf.tokenizers.vocabulary import TokenType, Vocabulary, byte_of

__all__ = ["CheapestModel"]

_AS_BYTES = 10_000_000
_NEVER = 20_000_000  # a token that costs this much or more is not used


class CheapestModel:
    """Turns text without special tokens into ids, and ids into bytes. Threads may share it."""

    add_space_prefix = False
    add_bos = False
    always_bos = False

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        """CheckpointError if the vocabulary has no scores, or not a token for each byte."""
        del metadata
        if vocabulary.scores is None:
            raise CheckpointError("tokenizer.ggml.scores is missing: a PLaMo 2 tokenizer cannot work without")
        bytes_ = {byte_of(text): id for text, id in vocabulary.of_type(TokenType.BYTE).items()}
        missing = [byte for byte in range(256) if byte not in bytes_]
        if missing:
            raise CheckpointError(f"tokenizer.ggml.tokens has no token for the byte 0x{missing[0]:02X}")
        self._bytes = [bytes_[byte] for byte in range(256)]
        self._vocabulary = vocabulary
        self._scores = vocabulary.scores
        self._find = token_finder(vocabulary.texts, hidden=vocabulary.abnormal)
        hidden = frozenset(vocabulary.abnormal)
        self._lengths = prefix_lengths(text for id, text in enumerate(vocabulary.texts) if id not in hidden)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of ``text``."""
        del at_start
        find, lengths, cost_of = self._find, self._lengths, self._cost
        end = len(text)
        costs = [0] * (end + 1)
        chosen: list[tuple[int, int]] = [(1, -1)] * end  # length and id of what stands at a place; -1 for bytes
        for place in range(end - 1, -1, -1):
            best, choice = costs[place + 1] + _AS_BYTES, (1, -1)
            for length in reversed(lengths(text, place)):
                id = find(text[place : place + length]) if place + length <= end else None
                if id is None or (price := cost_of(id)) >= _NEVER:
                    continue
                cost = costs[place + length] + price
                if cost <= best:  # the shortest come first, and the longest of equals wins
                    best, choice = cost, (length, id)
            costs[place], chosen[place] = best, choice
        ids: list[int] = []
        place = 0
        while place < end:
            length, id = chosen[place]
            if id >= 0:
                ids.append(id)
            else:
                ids += [self._bytes[byte] for byte in text[place].encode()]
            place += length
        return ids

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to the output."""
        if self._vocabulary.types[id] == TokenType.NORMAL:
            return self._vocabulary.texts.encoded(id)
        return self._vocabulary.plain_bytes(id)

    def _cost(self, id: int) -> int:
        score = self._scores[id] * 1e4
        if not isfinite(score):
            return _NEVER
        return -floor(score + 0.5) if score >= 0 else floor(0.5 - score)
