"""The vectorised sampler against its definition, written out in float64 (helpers_rows.draw)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.text import sampling
from engines.text.sampling import SamplerPlan, SamplingParameters, uniforms
from tests.engines.text.helpers_rows import draw


@pytest.fixture(autouse=True, scope="module")
def without_compiled_kernels() -> Iterator[None]:
    """These are tests of the sampler in MLX operations; the compiled one has its own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sampling, "_compiled", lambda: None)
        yield


def logits_of(rows: int, vocabulary: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 3, (rows, vocabulary)).astype(np.float32)


def sample(logits: Any, rows: list[SamplingParameters], positions: list[int]) -> list[int]:
    return [int(token) for token in np.array(SamplerPlan(rows).sample(mx.array(logits), positions))]


PARAMETERS = st.builds(
    SamplingParameters,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.95, 1.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 40, 5000]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(PARAMETERS, min_size=1, max_size=5),
    vocabulary=st.sampled_from([3, 64, 97, 4096, 4097, 9000]),
    seed=st.integers(0, 999),
    position=st.integers(0, 5000),
)
def test_each_row_of_a_mixed_batch_is_drawn_by_the_definition(
    rows: list[SamplingParameters], vocabulary: int, seed: int, position: int
) -> None:
    logits = logits_of(len(rows), vocabulary, seed)
    positions = [position + i for i in range(len(rows))]
    got = sample(logits, rows, positions)
    wanted = [draw(row.astype(np.float64), p, at) for row, p, at in zip(logits, rows, positions, strict=True)]
    assert got == wanted


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(PARAMETERS, min_size=2, max_size=6), data=st.data())
def test_neighbours_and_width_do_not_change_a_draw(rows: list[SamplingParameters], data: st.DataObject) -> None:
    logits = logits_of(len(rows), 300)
    together = sample(logits, rows, list(range(len(rows))))
    order = data.draw(st.permutations(range(len(rows))))
    shuffled = sample(logits[order], [rows[i] for i in order], list(order))
    assert shuffled == [together[i] for i in order]
    alone = [sample(logits[i : i + 1], [rows[i]], [i])[0] for i in range(len(rows))]
    assert alone == together


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], np.float32))
    plan = SamplerPlan([SamplingParameters(seed=11)] * 4000)
    tokens = plan.sample(mx.array(np.repeat(logits, 4000, 0)), list(range(4000)))
    counts = Counter(np.array(tokens).tolist())
    for token, share in enumerate((0.5, 0.25, 0.125, 0.125)):
        assert abs(counts[token] / 4000 - share) < 5 * (share * (1 - share) / 4000) ** 0.5


def test_a_long_tail_keeps_its_share() -> None:
    """262,143 tokens of 2e-9 each after one of nearly 1: a single float32 running sum would lose them all."""
    vocabulary, tail = 262_144, 1 / 2048
    weights = np.full(vocabulary, tail / (vocabulary - 1), np.float32)
    weights[0] = 1 - tail
    logits = mx.array(np.log(weights)[None])
    plan = SamplerPlan([SamplingParameters(seed=5)])
    weights = weights.astype(np.float64)
    positions = [position for position in range(40_000) if uniforms(5, position)[0] > 1 - tail]
    assert 5 < len(positions) < 50  # about 20
    drawn = [plan.sample(logits, [position]).item() for position in positions[:8]]
    assert drawn == [draw(np.log(weights), plan.rows[0], position) for position in positions[:8]]
    assert len(set(drawn)) == 8 and 0 not in drawn


def test_logits_that_differ_by_a_rounding_give_the_same_draws() -> None:
    """As batches of two widths give them. In one inversion over the vocabulary the rounding of a few likely tokens shifts the
    many unlikely ones by more than their weights, and one of fourteen of these draws changes."""
    generator = np.random.default_rng(3)
    logits = generator.normal(0, 1, (200, 50_000)).astype(np.float32)
    logits[:, generator.integers(0, 50_000, 8)] += 9
    rounded = logits + generator.normal(0, 3e-5, logits.shape).astype(np.float32)
    rows = [SamplingParameters(seed=seed) for seed in range(200)]
    differ = np.array(sample(logits, rows, [9] * 200)) != np.array(sample(rounded, rows, [9] * 200))
    assert differ.sum() <= 1


@pytest.mark.parametrize("row", [{"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2}])
def test_filtered_tokens_are_never_drawn(row: dict[str, Any]) -> None:
    logits = np.log(np.array([[0.4, 0.05, 0.3, 0.05, 0.2]], np.float32))
    parameters = SamplingParameters(seed=3, **row)
    plan = SamplerPlan([parameters] * 500)
    drawn = set(np.array(plan.sample(mx.array(np.repeat(logits, 500, 0)), list(range(500)))).tolist())
    assert drawn == ({0, 2} if "top_p" in row else {0, 2, 4})


def test_a_nucleus_wider_than_the_candidates_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_HEAD", 16)
    logits = np.random.default_rng(0).normal(0, 0.3, (2, 700)).astype(np.float32)
    rows = [SamplingParameters(seed=1, top_p=0.9), SamplingParameters(seed=2, top_p=0.05)]
    for position in range(50):
        got = sample(logits, rows, [position, position])
        assert got == [draw(logits[i].astype(np.float64), rows[i], position) for i in range(2)]


def test_candidates_hold_the_nucleus_without_a_whole_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_widths = list[int]()
    whole_sort = mx.sort

    def sort(array: mx.array, axis: int) -> mx.array:
        sorted_widths.append(array.shape[-1])
        return whole_sort(array, axis=axis)

    monkeypatch.setattr(mx, "sort", sort)
    logits = logits_of(1, 20_000)
    sample(logits, [SamplingParameters(seed=1)], [0])
    assert sorted_widths == []
    sample(logits, [SamplingParameters(seed=1, top_p=0.5, top_k=50)], [0])
    assert sorted_widths == [50, 2048]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_logits_are_drawn_in_float32(dtype: mx.Dtype) -> None:
    logits = mx.array(logits_of(3, 97)).astype(dtype)
    rows = [SamplingParameters(seed=i, temperature=0.8, top_p=0.9) for i in range(3)]
    exact = np.array(logits.astype(mx.float32), np.float64)
    got = np.array(SamplerPlan(rows).sample(logits, [0, 1, 2])).tolist()
    assert got == [draw(exact[i], rows[i], i) for i in range(3)]


def test_minus_infinity_is_never_drawn() -> None:
    logits = np.full((1, 600), -np.inf, np.float32)
    logits[0, [5, 599]] = 0.0
    plan = SamplerPlan([SamplingParameters(seed=1)])
    assert {plan.sample(mx.array(logits), [p]).item() for p in range(40)} == {5, 599}


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-39, 1e-45, 1e-60])
def test_a_temperature_of_next_to_nothing_draws_the_likeliest(temperature: float) -> None:
    logits = np.full((1, 600), -np.inf, np.float32)  # as a grammar leaves them
    logits[0, 500:] = np.arange(100)
    rows = [SamplingParameters(seed=1, temperature=temperature)]
    assert sample(logits, rows, [7]) == [599]


def test_uniform_numbers_differ_by_seed_position_and_level_and_are_even() -> None:
    numbers = np.array([[uniforms(seed, position) for seed in range(40)] for position in range(40)])
    assert len(set(numbers.ravel().tolist())) == numbers.size == 4800
    assert numbers.min() >= 0.0 and numbers.max() < 1.0
    for level in range(3):
        assert np.histogram(numbers[:, :, level], 8, (0, 1))[0].min() > 150
    # Neighbouring seeds, and the levels of one draw, are not the same sequence, shifted or not.
    sequences = [[uniforms(seed, p)[level] for p in range(999)] for seed in (1, 2) for level in range(3)]
    assert np.abs(np.corrcoef(sequences) - np.eye(6)).max() < 0.1


def test_negative_and_huge_seeds_are_taken() -> None:
    assert all(0.0 <= number < 1.0 for number in uniforms(-1, 0))
    assert uniforms(-1, 0) == uniforms(2**64 - 1, 0)
