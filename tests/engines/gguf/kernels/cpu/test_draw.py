"""The compiled sampler against its definition in float64 (helpers_rows.draw), through ``SamplerPlan``."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engines.gguf.kernels.cpu import Extension
from engines.text.sampling import SamplerPlan, SamplingParameters, uniforms
from tests.engines.text.helpers_rows import draw


def logits_of(rows: int, vocabulary: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocabulary)).astype(np.float32)


def sample(logits: Any, rows: list[SamplingParameters], positions: list[int]) -> list[int]:
    return [int(token) for token in np.array(SamplerPlan(rows).sample(mx.array(logits), positions))]


@pytest.mark.parametrize("vocabulary", [3, 97, 3000, 50_000])
def test_rows_of_all_kinds_are_drawn_by_the_definition(compiled: Extension, vocabulary: int) -> None:
    rows = [
        SamplingParameters(seed=seed, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
        for seed, temperature in enumerate((0.0, 0.3, 1.0, 2.0))
        for top_p in (0.0, 0.1, 0.95, 1.0)
        for top_k in (0, 1, 2, 40, 5000)
        for min_p in (0.0, 0.05, 1.0)
    ]
    logits = logits_of(len(rows), vocabulary)
    positions = list(range(len(rows)))
    wanted = [draw(row.astype(np.float64), p, at) for row, p, at in zip(logits, rows, positions, strict=True)]
    assert sample(logits, rows, positions) == wanted


def test_a_draw_does_not_depend_on_neighbours_or_threads(compiled: Extension) -> None:
    rows = [SamplingParameters(seed=seed, top_p=0.9, top_k=seed % 3 * 50) for seed in range(12)]
    logits = logits_of(len(rows), 5000)
    compiled.set_threads(3)
    together = sample(logits, rows, list(range(12)))
    compiled.set_threads(1)
    assert [sample(logits[i : i + 1], [rows[i]], [i])[0] for i in range(12)] == together


def test_a_long_tail_keeps_its_share(compiled: Extension) -> None:
    """262,143 tokens of 2e-9 each after one of nearly 1: a single float32 running sum would lose them all."""
    vocabulary, tail = 262_144, 1 / 2048
    weights = np.full(vocabulary, tail / (vocabulary - 1), np.float32)
    weights[0] = 1 - tail
    position = next(position for position in range(40_000) if uniforms(5, position)[0] > 1 - tail)
    row = SamplingParameters(seed=5)
    (token,) = sample(np.log(weights)[None], [row], [position])
    assert token == draw(np.log(weights.astype(np.float64)), row, position) != 0


def test_ties_at_a_cutoff_are_all_kept(compiled: Extension) -> None:
    logits = np.array([[1.0, 3.0, 1.0, 3.0, 3.0, -2.0]], np.float32)
    for row in (
        SamplingParameters(seed=1, top_k=2),
        SamplingParameters(seed=1, top_p=0.4),
        SamplingParameters(seed=1, min_p=0.9),
    ):
        assert {sample(logits, [row], [at])[0] for at in range(60)} == {1, 3, 4}


def test_a_masked_vocabulary_leaves_what_is_allowed(compiled: Extension) -> None:
    logits = np.full((2, 40), -np.inf, np.float32)
    logits[:, 7] = -1e30
    rows = [SamplingParameters(seed=1), SamplingParameters(seed=1, top_p=0.5, top_k=3)]
    assert sample(logits, rows, [0, 1]) == [7, 7]


def test_logits_of_a_slice_and_of_half_precision(compiled: Extension) -> None:
    logits = mx.array(logits_of(3, 50)[:, None, :])
    plan = SamplerPlan([SamplingParameters(seed=1, temperature=0.0)] * 3)
    expected = np.array(mx.argmax(logits[:, -1], axis=-1)).tolist()
    assert np.array(plan.sample(logits[:, -1], [0, 0, 0])).tolist() == expected
    half = logits[:, -1].astype(mx.bfloat16)
    assert np.array(plan.sample(half, [0, 0, 0])).tolist() == np.array(mx.argmax(half, axis=-1)).tolist()
