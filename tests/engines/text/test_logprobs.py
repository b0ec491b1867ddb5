"""Scores of drawn tokens against full sorts in float64."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.text.logprobs import LogprobReader, TokenScore, score
from engines.text.sampling import SamplingParameters


def log_softmax(logits: Any) -> Any:
    logits = logits.astype(np.float64)
    return (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )


@given(
    vocabulary=st.sampled_from([1, 2, 21, 127, 128, 129, 1000, 4096]),
    rows=st.integers(1, 4),
    alternatives=st.integers(0, 20),
    seed=st.integers(0, 99),
)
def test_scores_are_those_of_a_full_sort(vocabulary: int, rows: int, alternatives: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 4, (rows, vocabulary)).astype(np.float32)
    tokens = generator.integers(0, vocabulary, rows)
    got = score(mx.array(logits), mx.array(tokens), alternatives).read()
    wanted = log_softmax(logits)
    for row in range(rows):
        assert got[row].logprob == pytest.approx(wanted[row, tokens[row]], abs=1e-5)
        best = np.argsort(-wanted[row], kind="stable")[:alternatives]
        assert [id for id, _ in got[row].top] == best.tolist()
        assert [value for _, value in got[row].top] == pytest.approx(wanted[row, best].tolist(), abs=1e-5)


def test_of_equals_the_first_come_first() -> None:
    logits = np.zeros((1, 1000), np.float32)
    logits[0, [900, 5]] = 1.0
    (only,) = score(mx.array(logits), mx.array([0]), 4).read()
    assert [id for id, _ in only.top] == [5, 900, 0, 1]


def test_what_has_no_probability_is_no_alternative() -> None:
    logits = np.full((1, 130), -np.inf, np.float32)
    logits[0, [7, 129]] = (2.0, 2.0)
    (only,) = score(mx.array(logits), mx.array([7]), 20).read()
    half = pytest.approx(np.log(0.5), abs=1e-6)
    assert [id for id, _ in only.top] == [7, 129]
    assert [only.logprob, *(value for _, value in only.top)] == [half] * 3


def test_only_rows_that_ask_are_read_each_with_its_own_number() -> None:
    logits = np.random.default_rng(1).normal(0, 3, (4, 300)).astype(np.float32)
    tokens = mx.array([1, 2, 3, 4])
    rows = [SamplingParameters(seed=0, logprobs=asked) for asked in (None, 2, 0, None)]
    pending, arrays = LogprobReader(rows).read(mx.array(logits), tokens)
    assert [each is None for each in pending] == [True, False, False, True]
    assert [array.shape for array in arrays] == [(2,), (2, 2), (2, 2)]
    read = [each.read() for each in pending if each is not None]
    assert [len(each.top) for each in read] == [2, 0]
    wanted = log_softmax(logits)
    assert [each.logprob for each in read] == pytest.approx([wanted[1, 2], wanted[2, 3]], abs=1e-5)


def test_where_nobody_asks_nothing_is_computed() -> None:
    pending, arrays = LogprobReader([SamplingParameters(seed=0)] * 2).read(mx.zeros((2, 5)), mx.array([0, 1]))
    assert pending == [None, None] and arrays == ()


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits = mx.array(np.random.default_rng(2).normal(0, 3, (1, 2000))).astype(mx.bfloat16)
    (only,) = score(logits, mx.array([10]), 3).read()
    wanted = log_softmax(np.array(logits.astype(mx.float32)))
    assert isinstance(only, TokenScore) and only.logprob == pytest.approx(wanted[0, 10], abs=1e-4)
