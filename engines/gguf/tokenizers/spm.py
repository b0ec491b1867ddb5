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
from typing import Any

from engines.errors import CheckpointError
from engines.gguf.tokenizers.cuts import cutter
from engines.gguf.tokenizers.index import token_finder
from engines.gguf.tokenizers.merging import CACHED_LENGTH, CACHED_PIECES, CACHED_WORDS, merged
from engines.gguf.tokenizers.vocabulary import PREFIX, SPACE, TokenType, Vocabulary, byte_of, metadata_flag

__all__ = ["SentencePieceModel"]


class SentencePieceModel:
    """Turns text without special tokens into ids, and ids into bytes. Threads may share it."""

    add_bos = True  # where the file does not say
    always_bos = False

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        """CheckpointError if the vocabulary has no scores."""
        if vocabulary.scores is None:
            raise CheckpointError("tokenizer.ggml.scores is missing: a SentencePiece tokenizer cannot work without")
        self.add_space_prefix = metadata_flag(metadata, PREFIX + "add_space_prefix") is not False
        self._removes_spaces = metadata_flag(metadata, PREFIX + "remove_extra_whitespaces") is True
        self._vocabulary = vocabulary
        self._scores = vocabulary.scores
        # Only normal tokens are for merges to make: a control token spelled out in text stays text.
        self._find = token_finder(vocabulary.texts, hidden=vocabulary.abnormal)
        self._byte_ids = {
            byte: id for text, id in vocabulary.of_type(TokenType.BYTE).items() if (byte := byte_of(text)) is not None
        }
        self._cut = cutter(vocabulary.texts)
        self._cached_cost = lru_cache(CACHED_PIECES)(self._cost)
        self._cached_merge = lru_cache(CACHED_WORDS)(self._merge)

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of ``text``; ``at_start`` says that it begins the prompt or follows a special token."""
        if self._removes_spaces:
            text = re.sub(" +", " ", text).strip(" ")
            if not text:
                return []
        if self.add_space_prefix and at_start:
            text = " " + text
        ids: list[int] = []
        for word in self._cut(text.replace(" ", SPACE)):
            ids += self._cached_merge(word) if len(word) <= CACHED_LENGTH else self._merge(word)
        return ids

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to the output."""
        return self._vocabulary.plain_bytes(id)

    def _merge(self, word: str) -> tuple[int, ...]:
        if len(word) == 1 and (id := self._find(word)) is not None:
            return (id,)
        ids: list[int] = []
        for piece in merged(word, self._cached_cost):
            id = self._find(piece)
            if id is not None:
                ids.append(id)
            else:
                ids += self._as_bytes(piece)
        return tuple(ids)

    def _cost(self, text: str) -> float | None:
        id = self._find(text)
        return None if id is None else -self._scores[id]

    def _as_bytes(self, character: str) -> list[int]:
        data = character.encode("utf-8")
        if all(byte in self._byte_ids for byte in data):
            return [self._byte_ids[byte] for byte in data]
        unknown = self._vocabulary.unknown_id
        return [] if unknown is None else [unknown]
