"""How the next token of each row is drawn.

Order of the filters, as most engines have it: temperature, top_k, top_p, min_p.

1. ``z = (logits - max) / temperature``, float32. Temperature 0 (or too small a float32) and top_k 1 are greedy: the first largest
   logit.
2. ``top_k``: keeps the k largest; what ties with the k-th is kept too.
3. ``top_p``: of what is left, keeps the smallest set of most probable tokens whose mass reaches ``top_p`` (Holtzman et al.,
   2020, "The Curious Case of Neural Text Degeneration"); ties with the last one are kept too.
4. ``min_p``: keeps what is at least ``min_p`` times as probable as the most probable token (Nguyen et al., 2024).

The draw goes down a tree over the vocabulary, whose leaves are tokens in runs of 64 and whose nodes weigh what is below them: runs
of 4096, of 64, then tokens. At each level it inverts the cumulative distribution of the node's children at a uniform number, a
pure function of (seed, position of the token in its row, prompt included, level). So neither the batch's width nor joins,
neighbours, preemption or device change a draw, and a vocabulary of 262,144 tokens costs no noise vector. They may change a row's
logits by a rounding. In one inversion over the whole vocabulary the rounding of a few likely tokens shifts the many unlikely ones
by more than their weights, so that draws from the tail change with it; going down by levels, a draw changes at near ties only.
Rows that need no filter pay for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from engines.gguf.kernels.cpu import Extension, extension

__all__ = ["SamplerPlan", "SamplingParameters", "log_sum_exp", "uniforms"]

_MASK_64 = 2**64 - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_BELOW_ONE = 1.0 - 2.0**-22  # keeps a target below the float32 total it is compared with
_RUN = 64  # children of a node, but for the root, which has as many as it takes
_LEVELS = 3
_LEAST_TEMPERATURE = 2.0**-126  # smaller ones are subnormal in float32, which some devices take for 0, or none at all
_HEAD = 2048  # candidates that hold nearly every nucleus; taking them costs 2 ms where sorting 262,144 costs 45 (CPU)


@dataclass(frozen=True)
class SamplingParameters:
    """How one row is drawn; ranges are the request's, checked by the protocol parsers. ``top_k`` 0 is off."""

    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token, bias), no token twice
    logprobs: int | None = None  # alternatives reported beside each token's own log-probability; None: neither is

    @property
    def greedy(self) -> bool:
        return self.temperature < _LEAST_TEMPERATURE or self.top_k == 1

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before the draw (:mod:`engines.text.adjustments`)."""
        penalties = self.frequency_penalty, self.presence_penalty, self.repetition_penalty - 1.0
        return bool(self.logit_bias) or any(penalties)


def uniforms(seed: int, position: int) -> list[float]:
    """A number in [0, 1) for each level of this draw: SplitMix64's output function (Steele, Lea and Flood, 2014) of the seed, the
    position and the level, one after the other."""
    state = _mix((_mix(seed & _MASK_64) + (position + 1) * _GOLDEN_GAMMA) & _MASK_64)
    return [(_mix((state + level * _GOLDEN_GAMMA) & _MASK_64) >> 11) * 2.0**-53 for level in range(_LEVELS)]


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK_64
    return value ^ (value >> 31)


def log_sum_exp(logits: mx.array) -> mx.array:
    """(…, vocabulary) → (…, 1) float32: what logits lie above their log-probabilities."""
    compiled = _compiled()
    logits = logits.astype(mx.float32)
    return mx.logsumexp(logits, axis=-1, keepdims=True) if compiled is None else compiled.log_sum_exp(logits)


def _compiled() -> Extension | None:
    """The compiled kernels, where they serve the default device."""
    return extension() if mx.default_device().type == mx.DeviceType.cpu else None


class SamplerPlan:
    """One vectorised sampler for the rows of a batch; made anew when a row joins or leaves.

    Args:
        rows: the parameters, one a row, in the batch's order.
    """

    def __init__(self, rows: Sequence[SamplingParameters]) -> None:
        self.rows = list(rows)
        drawn = [i for i, row in enumerate(rows) if not row.greedy]
        self._greedy = [i for i, row in enumerate(rows) if row.greedy]
        self._drawn = drawn
        self._seeds = [rows[i].seed for i in drawn]
        # The answers come as greedy rows, then drawn rows; this puts them back into the batch's order.
        order = {row: place for place, row in enumerate(self._greedy + drawn)}
        self._order = mx.array([order[i] for i in range(len(rows))], dtype=mx.uint32)
        self._temperature = mx.array([[rows[i].temperature] for i in drawn], dtype=mx.float32)
        self._parameters = (
            mx.array([0.0 if row.greedy else row.temperature for row in rows], dtype=mx.float32),
            mx.array([row.top_k for row in rows], dtype=mx.int32),
            mx.array([row.top_p for row in rows], dtype=mx.float32),
            mx.array([row.min_p for row in rows], dtype=mx.float32),
        )
        self._top_k = [(place, rows[i].top_k) for place, i in enumerate(drawn) if rows[i].top_k > 0]
        self._top_p = [(place, rows[i].top_p) for place, i in enumerate(drawn) if rows[i].top_p < 1.0]
        self._min_p = (
            mx.array([[rows[i].min_p] for i in drawn], dtype=mx.float32)
            if any(rows[i].min_p > 0.0 for i in drawn)
            else None
        )

    def sample(self, logits: mx.array, positions: Sequence[int]) -> mx.array:
        """The next token of each row, lazily.

        Args:
            logits: (rows, vocabulary), any float dtype.
            positions: where in its row, prompt included, each new token will stand.

        Returns:
            (rows,) uint32.
        """
        compiled = _compiled()
        if compiled is not None:
            numbers = [uniforms(row.seed, at) for row, at in zip(self.rows, positions, strict=True)]
            return compiled.draw(logits, *self._parameters, mx.array(numbers, dtype=mx.float32))
        if not self._drawn:
            return mx.argmax(logits, axis=-1)
        if not self._greedy:
            return self._draw(logits, positions)
        greedy = mx.argmax(logits[mx.array(self._greedy)], axis=-1)
        drawn = self._draw(logits[mx.array(self._drawn)], [positions[i] for i in self._drawn])
        return mx.concatenate([greedy, drawn])[self._order]

    def _draw(self, logits: mx.array, positions: Sequence[int]) -> mx.array:
        logits = logits.astype(mx.float32)
        scaled = (logits - mx.max(logits, axis=-1, keepdims=True)) / self._temperature
        vocabulary = scaled.shape[-1]
        top_k = [(place, k) for place, k in self._top_k if k < vocabulary]
        if top_k:
            scaled = mx.where(scaled >= _top_k_cutoff(scaled, top_k), scaled, -mx.inf)
        weights = mx.exp(scaled)  # the largest is exactly 1
        if self._top_p:
            weights = mx.where(weights >= _top_p_cutoff(weights, self._top_p), weights, 0.0)
        if self._min_p is not None:
            weights = mx.where(weights >= self._min_p, weights, 0.0)
        numbers = [uniforms(seed, position) for seed, position in zip(self._seeds, positions, strict=True)]
        return _descend(weights, mx.array(numbers, dtype=mx.float32))


def _top_k_cutoff(scaled: mx.array, top_k: Sequence[tuple[int, int]]) -> mx.array:
    """(rows, 1): the k-th largest value of each row that asks, -inf for the others."""
    places = mx.array([place for place, _ in top_k])
    most = max(k for _, k in top_k)
    head = mx.sort(mx.topk(scaled[places], most, axis=-1), axis=-1)  # ascending
    kth = mx.take_along_axis(head, mx.array([[most - k] for _, k in top_k]), axis=-1)
    cutoff = mx.full((scaled.shape[0], 1), -mx.inf)
    cutoff[places] = kth
    return cutoff


def _top_p_cutoff(weights: mx.array, top_p: Sequence[tuple[int, float]]) -> mx.array:
    """(rows, 1): the smallest weight in the nucleus of each row that asks, 0 for the others.

    On CPU a sort of the whole vocabulary costs more than waiting for the answer whether the likeliest tokens hold the
    nucleus; on a GPU waiting costs more than the sort.
    """
    places = mx.array([place for place, _ in top_p])
    rows = weights[places]
    needed = mx.array([[p] for _, p in top_p], dtype=mx.float32) * mx.sum(rows, axis=-1, keepdims=True)
    candidates = rows
    if rows.shape[-1] > _HEAD and mx.default_device().type == mx.DeviceType.cpu:
        head = mx.topk(rows, _HEAD, axis=-1)
        if mx.all(mx.sum(head, axis=-1, keepdims=True) >= needed).item():
            candidates = head
    descending = -mx.sort(-candidates, axis=-1)
    before = mx.cumsum(descending, axis=-1, inclusive=False)
    last = mx.maximum(mx.sum(before < needed, axis=-1, keepdims=True) - 1, 0)
    cutoff = mx.zeros((weights.shape[0], 1))
    cutoff[places] = mx.take_along_axis(descending, last, axis=-1)
    return cutoff


def _descend(weights: mx.array, numbers: mx.array) -> mx.array:
    """The tokens drawn: (rows,) uint32, from weights (rows, vocabulary) by numbers (rows, levels). Never one of weight 0."""
    rows, vocabulary = weights.shape
    padding = -vocabulary % _RUN**2
    leaves = mx.pad(weights, [(0, 0), (0, padding)]).reshape(rows, -1, _RUN)
    runs = mx.sum(leaves, axis=-1).reshape(rows, -1, _RUN)
    node = _child(mx.sum(runs, axis=-1), numbers[:, 0:1])
    for level, children in enumerate((runs, leaves), start=1):
        below = mx.take_along_axis(children, node[:, :, None], axis=1)[:, 0]
        node = node * _RUN + _child(below, numbers[:, level : level + 1])
    return node[:, 0]


def _child(weights: mx.array, number: mx.array) -> mx.array:
    """(rows, 1) uint32: the first child with weight at which the running sum passes ``number`` (rows, 1) of the total.

    A running sum may step by rounding alone, or stay below its last value: so the weight itself is asked, too, and failing all
    the first child with weight is taken.
    """
    running = mx.cumsum(weights, axis=-1)
    passed = running > mx.minimum(number, _BELOW_ONE) * running[:, -1:]
    return mx.argmax((weights > 0).astype(mx.uint32) * (1 + passed.astype(mx.uint32)), axis=-1, keepdims=True)
