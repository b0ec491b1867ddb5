"""The prompt that is being read: one row in a batch of its own, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx
from mlx_lm.generate import PromptProcessingBatch
from mlx_lm.models.cache import make_prompt_cache

from engines.scheduling.admission import KV_STEP
from engines.scheduling.pacing import FIRST_CHUNK, LARGEST_CHUNK
from engines.text.cache_room import fit
from engines.text.logprobs import PendingScores, score
from engines.text.row import Row, RowPrompt

__all__ = ["Prefill", "prompt_scores"]

_SCORED_BYTES = 64 * 1024 * 1024  # of float32 logits at once: a chunk of 64 tokens of a vocabulary of 262,144


class Prefill:
    """Reads one row's prompt but for its last token, which is the input of the first draw.

    Args:
        model: (rows, n) uint32 ids → (rows, n, vocabulary) logits; ``cache`` grows by n.
        row: whose prompt it is.
        merges: the model's caches can hold several rows.
    """

    def __init__(self, model: Callable[..., mx.array], row: Row, *, merges: bool) -> None:
        self.row = row
        self.done = 0  # tokens already in its cache
        self.scores: list[PendingScores] = []  # of the tokens after the first, chunk by chunk, where the row asks
        self._scorer = _Scorer(model, row.sampling.logprobs or 0) if row.scores_prompt else None
        cache = make_prompt_cache(cast(Any, model))
        self._batch = PromptProcessingBatch(
            cast(Any, self._scorer or model),
            [row.id],
            [cache] if merges else [],
            tokens=[[]],
            prefill_step_size=LARGEST_CHUNK,
        )
        if not merges:
            self._batch.prompt_cache = cache

    @property
    def cache(self) -> list[Any]:
        """One row, an entry a layer."""
        return cast(list[Any], self._batch.prompt_cache)

    @property
    def kv_bytes(self) -> int:
        """Bytes that it holds now."""
        return cast(int, sum(cache.nbytes for cache in self.cache))

    @property
    def finished(self) -> bool:
        return self.done == len(self.row.tokens) - 1

    def read(self, tokens: int) -> int:
        """Reads the next chunk, of so many tokens at most; how many it was. There must be some left."""
        if self._scorer is not None:
            tokens = min(tokens, self._scorer.most_tokens)
        end = min(_chunk_end(self.done, tokens), len(self.row.tokens) - 1)
        chunk = list(self.row.tokens[self.done : end])
        if self._scorer is not None:
            self._scorer.following = self.row.tokens[self.done + 1 : end + 1]
        self._batch.prompt([chunk])
        if self._scorer is not None:
            self.scores.append(self._scorer.take())
        fit(self._batch.prompt_cache)
        self.done = end
        return len(chunk)


def prompt_scores(row_id: int, first: int, chunk: PendingScores | None) -> RowPrompt:
    """What a row hears when the chunk of its prompt that begins at ``first`` has been read; None: there was none to read."""
    scores = [] if chunk is None else chunk.read()
    return RowPrompt(row_id, 0, (None, *scores)) if first == 0 else RowPrompt(row_id, first + 1, tuple(scores))


class _Scorer:
    """The model, scoring the tokens that follow each it reads. Logits live for one chunk only."""

    def __init__(self, model: Callable[..., mx.array], alternatives: int) -> None:
        self._model = model
        self._alternatives = alternatives
        self._scores: PendingScores | None = None
        self.most_tokens = FIRST_CHUNK  # of a chunk: until the vocabulary is seen
        self.following: tuple[int, ...] = ()  # the tokens behind those of the next chunk, as many

    def __call__(self, inputs: mx.array, cache: list[Any]) -> mx.array:
        logits = self._model(inputs, cache=cache)
        self.most_tokens = max(1, _SCORED_BYTES // (4 * logits.shape[-1]))
        self._scores = score(logits[0], mx.array(self.following, dtype=mx.uint32), self._alternatives)
        mx.eval(self._scores.arrays)
        return logits

    def take(self) -> PendingScores:
        scores, self._scores = self._scores, None
        assert scores is not None
        return scores


def _chunk_end(start: int, tokens: int) -> int:
    """Where a chunk of at most so many tokens ends: on a step of the caches where it reaches one, so that they grow in place."""
    end = start + tokens
    step = end // KV_STEP * KV_STEP
    return step if step > start else end
