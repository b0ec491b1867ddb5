"""SentencePiece's byte-pair encoding (``tokenizer.ggml.model`` "llama"): merges by the score of the token they make.

The rule: of all neighbours that together are a token, join those with the highest score, the leftmost of equals, until none
is left. What is no token then becomes bytes. The `tokenizers` library cannot state this rule: its merges are pairs in one
order, so two pairs that make the same token are not equals there; and to list the pairs of Gemma's 262k tokens takes seconds,
where a lexicon is ready at once. Source: SentencePiece's ``bpe_model``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from engines.errors import CheckpointError
from engines.gguf.tokenizers.cuts import APART, cutter
from engines.gguf.tokenizers.lexicon import MOST_CHARACTERS, Lexicon
from engines.gguf.tokenizers.merging import merged
from engines.gguf.tokenizers.texts import code_points
from engines.gguf.tokenizers.vocabulary import PREFIX, SPACE, TokenType, Vocabulary, byte_of, metadata_flag

__all__ = ["SentencePieceModel"]

_CACHED_WORDS: Final = 32768  # whose ids are kept
_CACHED_LENGTH: Final = 32  # characters of such a word: longer ones seldom come again
_TOGETHER: Final = 1 << 14  # characters of words that are merged together
_END: Final = -1  # stands for APART where ids are collected


class SentencePieceModel:
    """Turns text without special tokens into ids, and ids into bytes. Threads may share it."""

    add_bos = True  # where the file does not say
    always_bos = False

    def __init__(self, metadata: Mapping[str, Any], vocabulary: Vocabulary) -> None:
        """CheckpointError if the vocabulary has no scores, or a token too long to be looked for."""
        if vocabulary.scores is None:
            raise CheckpointError("tokenizer.ggml.scores is missing: a SentencePiece tokenizer cannot work without")
        self.add_space_prefix = metadata_flag(metadata, PREFIX + "add_space_prefix") is not False
        self._removes_spaces = metadata_flag(metadata, PREFIX + "remove_extra_whitespaces") is True
        self._vocabulary = vocabulary
        # No score is so bad that a merge is not made for it.
        costs = np.fmin(-np.frombuffer(vocabulary.scores, np.float32), np.finfo(np.float32).max)
        self._costs = np.concatenate((np.array([np.inf], np.float32), costs))
        # Only normal tokens are for merges to make: a control token spelled out in text stays text.
        self._lexicon = Lexicon(vocabulary.texts, hidden=vocabulary.abnormal)
        too_long = min({*self._lexicon.left_out}.difference(vocabulary.abnormal), default=None)
        if too_long is not None:
            raise CheckpointError(
                f"tokenizer.ggml.tokens[{too_long}] has more than {MOST_CHARACTERS} characters, which is no token of SentencePiece"
            )
        self._byte_ids = {
            byte: id for text, id in vocabulary.of_type(TokenType.BYTE).items() if (byte := byte_of(text)) is not None
        }
        self._cut = cutter(vocabulary.texts)
        self._cache: dict[str, tuple[int, ...]] = {}  # replaced or added to, never taken from

    def encode(self, text: str, *, at_start: bool) -> list[int]:
        """The ids of ``text``; ``at_start`` says that it begins the prompt or follows a special token."""
        return next(self.encode_all([(text, at_start)]))

    def encode_all(self, texts: Sequence[tuple[str, bool]]) -> Iterator[list[int]]:
        """The ids of each text, with its ``at_start``: sooner than one by one where they are many and short."""
        words = list(self._cut(APART.join([self._written(text, at_start) for text, at_start in texts])))
        known = self._ids_of(dict.fromkeys(words))
        ids = list(chain.from_iterable(map(known.__getitem__, words)))
        start = 0
        for _ in range(len(texts) - 1):
            end = ids.index(_END, start)
            yield ids[start:end]
            start = end + 1
        yield ids[start:] if start else ids

    def token_bytes(self, id: int) -> bytes:
        """What the token adds to the output."""
        return self._vocabulary.plain_bytes(id)

    def _written(self, text: str, at_start: bool) -> str:
        """As tokens write it."""
        if self._removes_spaces:
            text = re.sub(" +", " ", text).strip(" ")
            if not text:
                return ""
        if self.add_space_prefix and at_start:
            text = " " + text
        return text.replace(" ", SPACE)

    def _ids_of(self, words: Mapping[str, None]) -> dict[str, tuple[int, ...]]:
        """Of each word; those that are short and new are kept, in the place of all others where there is no more room."""
        cache = self._cache
        known = {word: ids for word in words if (ids := cache.get(word)) is not None}
        new = [word for word in words if word not in known and word != APART]
        short: dict[str, tuple[int, ...]] = {}
        for together in _batches(new):
            for word, ids in zip(together, self._merged(APART.join(together)), strict=True):
                known[word] = ids
                if len(word) <= _CACHED_LENGTH:
                    short[word] = ids
        if len(cache) + len(short) <= _CACHED_WORDS:
            cache.update(short)
        else:
            self._cache = dict(islice(short.items(), _CACHED_WORDS))
        known[APART] = (_END,)
        return known

    def _merged(self, text: str) -> Iterator[tuple[int, ...]]:
        """The ids of each word between two APARTs."""
        points = code_points(text)
        starts, ids = merged(len(points), self._lexicon.matches(points), self._costs)
        ends = np.flatnonzero(points[starts] == ord(APART)).tolist()
        listed: list[int] = ids.tolist()
        start = 0
        for end in (*ends, len(listed)):
            word = listed[start:end]
            if -1 in word:
                places = starts[start:end].tolist()
                word = [
                    part
                    for id, place in zip(word, places, strict=True)
                    for part in ((id,) if id >= 0 else self._as_bytes(text[place]))
                ]
            yield tuple(word)
            start = end + 1

    def _as_bytes(self, character: str) -> list[int]:
        data = character.encode("utf-8")
        if all(byte in self._byte_ids for byte in data):
            return [self._byte_ids[byte] for byte in data]
        unknown = self._vocabulary.unknown_id
        return [] if unknown is None else [unknown]


def _batches(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """Of about as many characters each; a long word is alone."""
    start = size = 0
    for end, word in enumerate(words):
        if size and size + len(word) > _TOGETHER:
            yield words[start:end]
            start, size = end, 0
        size += len(word)
    if start < len(words):
        yield words[start:]
