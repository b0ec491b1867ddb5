"""SentencePiece's byte-pair encoding (``tokenizer.ggml.model`` "llama"): merges by the score of the token they make.

The rule: of all neighbours that together are a token, join those with the highest score, the leftmost of equals, until none
is left. What is no token then becomes bytes. The `tokenizers` library cannot state this rule: its merges are pairs in one
order, so two pairs that make the same token are not equals there; and to list the pairs of Gemma's 262k tokens takes seconds,
where an index is ready at once. Source: SentencePiece's ``bpe_model``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

from engines.errors import CheckpointError
from engines.gguf.tokenizers.index import token_finder
from engines.gguf.tokenizers.vocabulary import PREFIX, TokenType, Vocabulary, metadata_flag

__all__ = ["SentencePieceModel"]

_SPACE = "▁"  # how pieces write a space
_SPACE_BYTES = _SPACE.encode()
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CACHED_WORDS = 32768
_CACHED_PIECES = 8192
_CACHED_LENGTH = 32  # characters: longer words seldom come again


class SentencePieceModel:
    """Turns text without special tokens into ids, and ids into bytes. Threads may share it."""

    add_bos = True  # where the file does not say

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        """CheckpointError if the vocabulary has no scores."""
        if vocabulary.scores is None:
            raise CheckpointError("tokenizer.ggml.scores is missing: a SentencePiece tokenizer cannot work without")
        self.add_space_prefix = metadata_flag(metadata, PREFIX + "add_space_prefix") is not False
        self._removes_spaces = metadata_flag(metadata, PREFIX + "remove_extra_whitespaces") is True
        self._vocabulary = vocabulary
        self._scores = vocabulary.scores
        # Only normal tokens are for merges to make: a control token spelled out in text stays text.
        self._find = lru_cache(_CACHED_PIECES)(token_finder(vocabulary.texts, hidden=vocabulary.abnormal))
        self._byte_ids = {
            int(byte[1], 16): id
            for text, id in vocabulary.of_type(TokenType.BYTE).items()
            if (byte := _BYTE.fullmatch(text))
        }
        self._word = re.compile(self._word_pattern())
        self._cached_merge = lru_cache(_CACHED_WORDS)(self._merge)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of ``text``; ``at_start`` says that it begins the prompt or follows a special token."""
        if self._removes_spaces:
            text = re.sub(" +", " ", text).strip(" ")
            if not text:
                return []
        if self.add_space_prefix and at_start:
            text = " " + text
        ids: list[int] = []
        for word in self._word.findall(text.replace(" ", _SPACE)):
            ids += self._cached_merge(word) if len(word) <= _CACHED_LENGTH else self._merge(word)
        return ids

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to the output."""
        text = self._vocabulary.texts.encoded(id)
        kind = self._vocabulary.types[id]
        if kind == TokenType.NORMAL:
            return text.replace(_SPACE_BYTES, b" ")
        if kind == TokenType.BYTE and (byte := _BYTE.fullmatch(self._vocabulary.texts[id])):
            return bytes([int(byte[1], 16)])
        return b"" if kind == TokenType.UNUSED else text

    def _word_pattern(self) -> str:
        """Words that may be merged one by one, since no token reaches across their borders.

        A space begins a word, unless some token has it after the very character that stands before it.
        """
        texts, types = self._vocabulary.texts, self._vocabulary.types
        spaced = (texts[id] for id in texts.having(_SPACE) if types[id] == TokenType.NORMAL)
        before = {left for text in spaced for left, right in pairwise(text) if right == _SPACE}
        joining = "".join(map(re.escape, sorted(before | {_SPACE})))
        return f"(?s:.(?:(?<=[{joining}]){_SPACE}|[^{_SPACE}])*)"

    def _merge(self, word: str) -> tuple[int, ...]:
        """Merges one word. O(n log n) in its length, as each merge adds at most two candidates."""
        find, scores = self._find, self._scores
        length = len(word)
        ends = list(range(1, length + 1))  # ends[i]: where the symbol that begins at i ends; 0 once it is merged away
        starts = list(range(-1, length))  # starts[i]: where the symbol that ends at i begins

        # (minus score, left, middle, right): word[left:middle] and word[middle:right] may become one
        candidates: list[tuple[float, int, int, int]] = []
        for middle in range(1, length):
            id = find(word[middle - 1 : middle + 1])
            if id is not None:
                candidates.append((-scores[id], middle - 1, middle, middle + 1))
        heapify(candidates)
        while candidates:
            _, left, middle, right = heappop(candidates)
            if ends[left] != middle or ends[middle] != right:
                continue  # one of the two is no longer there
            ends[left], ends[middle] = right, 0
            starts[right] = left
            if left > 0:
                before = starts[left]
                id = find(word[before:right])
                if id is not None:
                    heappush(candidates, (-scores[id], before, left, right))
            if right < length:
                after = ends[right]
                id = find(word[left:after])
                if id is not None:
                    heappush(candidates, (-scores[id], left, right, after))

        merged: list[int] = []
        place = 0
        while place < length:
            piece = word[place : ends[place]]
            id = find(piece)
            if id is not None:
                merged.append(id)
            else:
                merged += self._as_bytes(piece)
            place = ends[place]
        return tuple(merged)

    def _as_bytes(self, character: str) -> list[int]:
        data = character.encode("utf-8")
        if all(byte in self._byte_ids for byte in data):
            return [self._byte_ids[byte] for byte in data]
        unknown = self._vocabulary.unknown_id
        return [] if unknown is None else [unknown]
