"""Measured bytes beside estimated ones."""

from __future__ import annotations

import pytest

from engines.scheduling.admission import KvCost
from engines.scheduling.measured import EVIDENCE, MeasuredCost

ESTIMATE = KvCost(100, window_bytes_per_token=10, window_tokens=512, state_bytes=1000, layer_bytes_per_token=20)


def shapes(count: int, first: int = 1) -> list[list[list[int]]]:
    """As many batches, each of another length."""
    return [[[256 * (first + i)] * 2] for i in range(count)]


def test_an_estimate_is_raised_at_once_in_all_its_parts() -> None:
    measured = MeasuredCost(ESTIMATE)
    assert measured.cost == ESTIMATE and measured.bytes_per_row_token == 0.0
    batches = [[300, 100], [700]]
    measured.observe(batches, int(1.5 * (2 * ESTIMATE.row_bytes(300) + ESTIMATE.row_bytes(700))))
    assert measured.factor == pytest.approx(1.5)
    assert measured.cost == KvCost(150, 15, 512, 1500, 30)


def test_bytes_per_row_token_are_of_what_the_batches_span() -> None:
    measured = MeasuredCost(KvCost(100))
    measured.observe([[200, 100], [600]], 100_000)
    assert measured.bytes_per_row_token == 100_000 / (2 * 200 + 600)


def test_an_estimate_is_lowered_only_after_enough_shapes_and_to_the_largest() -> None:
    measured = MeasuredCost(KvCost(100))
    for i, batches in enumerate(shapes(EVIDENCE - 1)):
        for _ in range(5):  # the same shape again is no more evidence
            measured.observe(batches, (60 if i == 3 else 50) * 2 * batches[0][0])
    assert measured.factor == 1.0
    measured.observe([[77 * 256]], 50 * 77 * 256)
    assert measured.cost == KvCost(60)


def test_a_raise_is_forgotten_after_enough_other_shapes() -> None:
    measured = MeasuredCost(KvCost(100))
    measured.observe([[256]], 200 * 256)
    assert measured.cost == KvCost(200)
    for batches in shapes(EVIDENCE, first=2):
        measured.observe(batches, 100 * 2 * batches[0][0])
    assert measured.cost == KvCost(100)


def test_within_one_shape_the_largest_counts() -> None:
    measured = MeasuredCost(KvCost(100))
    for held in (100, 130, 90):
        measured.observe([[256]], held * 256)
    assert measured.factor == pytest.approx(1.3)


def test_nothing_is_learned_of_nothing_and_no_factor_is_absurd() -> None:
    measured = MeasuredCost(KvCost(100))
    measured.observe([], 5000)
    measured.observe([[], [0]], 5000)
    assert (measured.factor, measured.bytes_per_row_token) == (1.0, 0.0)
    measured.observe([[256]], 10**9)
    assert measured.factor == 4.0
    free = MeasuredCost(KvCost(0))
    free.observe([[256]], 5000)
    assert free.cost == KvCost(0)
