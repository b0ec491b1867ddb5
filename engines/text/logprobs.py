"""How probable the model itself held the tokens that were drawn, and what else it might have said.

Log-probabilities are those of the model's own distribution, before biases, penalties, temperature and filters. Rows that do
not ask cost nothing. The likeliest tokens are found by blocks: the k largest of a row stand in the k blocks with the largest
maxima, so one pass over the vocabulary and a partition of k blocks give them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import mlx.core as mx
import numpy as np

from engines.text.sampling import SamplingParameters, log_sum_exp

__all__ = ["LogprobReader", "PendingScores", "TokenScore", "score"]

_BLOCK = 128  # tokens


@dataclass(frozen=True)
class TokenScore:
    """A token's log-probability, and the likeliest tokens at its place: (token, log-probability), likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...]


class PendingScores:
    """Scores that the device may still be computing.

    Args:
        chosen: (rows,) float32, log-probabilities of the tokens.
        top_ids: (rows, k) uint32, likeliest first.
        top: (rows, k) float32, theirs.
    """

    def __init__(self, chosen: mx.array, top_ids: mx.array, top: mx.array) -> None:
        self.arrays = (chosen, top_ids, top)

    def read(self) -> list[TokenScore]:
        """All rows', with all k alternatives; waits for them."""
        chosen, ids, top = (np.array(each).tolist() for each in self.arrays)
        # What has no probability at all is no alternative.
        return [
            TokenScore(own, tuple((id, value) for id, value in zip(*row, strict=True) if value > -inf))
            for own, *row in zip(chosen, ids, top, strict=True)
        ]

    @cached_property
    def scores(self) -> list[TokenScore]:
        """As ``read``, once for all rows of a step."""
        return self.read()


@dataclass(frozen=True)
class PendingScore:
    """One row's of them."""

    of: PendingScores
    row: int
    alternatives: int

    def read(self) -> TokenScore:
        scored = self.of.scores[self.row]
        return TokenScore(scored.logprob, scored.top[: self.alternatives])


class LogprobReader:
    """Scores the draws of a batch; made anew when a row joins or leaves.

    Args:
        rows: each row's parameters in the batch's order.
    """

    def __init__(self, rows: Sequence[SamplingParameters]) -> None:
        asking = [(place, row.logprobs) for place, row in enumerate(rows) if row.logprobs is not None]
        self._asking = asking
        self._count = len(rows)
        self._most = max((alternatives for _, alternatives in asking), default=0)
        self._places = mx.array([place for place, _ in asking], dtype=mx.uint32)

    def read(self, logits: mx.array, tokens: mx.array) -> tuple[list[PendingScore | None], tuple[mx.array, ...]]:
        """The score of each row's token, None for a row that did not ask; and the arrays to be computed for them.

        Args:
            logits: (rows, vocabulary), the model's own.
            tokens: (rows,), drawn.
        """
        answers: list[PendingScore | None] = [None] * self._count
        if not self._asking:
            return answers, ()
        if len(self._asking) < self._count:
            logits, tokens = logits[self._places], tokens[self._places]
        pending = score(logits, tokens, self._most)
        for row, (place, alternatives) in enumerate(self._asking):
            answers[place] = PendingScore(pending, row, alternatives)
        return answers, pending.arrays


def score(logits: mx.array, tokens: mx.array, alternatives: int) -> PendingScores:
    """The scores of ``tokens`` (rows,) under ``logits`` (rows, vocabulary), with so many alternatives each; lazily."""
    total = log_sum_exp(logits)
    chosen = mx.take_along_axis(logits, tokens[:, None].astype(mx.uint32), axis=-1).astype(mx.float32) - total
    ids = _largest(logits, min(alternatives, logits.shape[-1]))
    top = mx.take_along_axis(logits, ids, axis=-1).astype(mx.float32) - total
    return PendingScores(chosen[:, 0], ids, top)


def _largest(logits: mx.array, count: int) -> mx.array:
    """(rows, count) uint32: the ids of the largest logits, largest first."""
    rows, vocabulary = logits.shape
    if count == 0:
        return mx.zeros((rows, 0), dtype=mx.uint32)
    padding = -vocabulary % _BLOCK
    padded = mx.pad(logits, [(0, 0), (0, padding)], constant_values=-mx.inf) if padding else logits
    blocks = padded.reshape(rows, -1, _BLOCK)
    kept = min(count, blocks.shape[1])
    # By ascending place, so that of equals the first comes first.
    best = mx.sort(_first(mx.max(blocks, axis=-1), kept), axis=-1)
    candidates = mx.take_along_axis(blocks, best[:, :, None], axis=1).reshape(rows, -1)
    ids = (best[:, :, None] * _BLOCK + mx.arange(_BLOCK, dtype=mx.uint32)).reshape(rows, -1)
    chosen = mx.sort(_first(candidates, count), axis=-1)
    values = mx.take_along_axis(candidates, chosen, axis=-1)
    order = mx.argsort(-values, axis=-1)
    return mx.take_along_axis(ids, mx.take_along_axis(chosen, order, axis=-1), axis=-1)


def _first(values: mx.array, count: int) -> mx.array:
    """(rows, count) uint32: places of the largest values, in no order."""
    if count >= values.shape[-1]:
        return mx.broadcast_to(mx.arange(values.shape[-1], dtype=mx.uint32), values.shape)
    return mx.argpartition(-values, kth=count - 1, axis=-1)[:, :count].astype(mx.uint32)
