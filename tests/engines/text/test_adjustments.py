"""Biases and penalties over the batch, against their definitions written out token for token (helpers_rows.adjusted)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.text.adjustments import LogitAdjustments, RowAdjustment
from engines.text.sampling import SamplingParameters
from tests.engines.text.helpers_rows import adjusted

VOCABULARY = 11
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), max_size=12)
PARAMETERS = st.builds(
    SamplingParameters,
    seed=st.just(0),
    frequency_penalty=st.sampled_from([0.0, 0.5, -2.0]),
    presence_penalty=st.sampled_from([0.0, 1.5, -0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    logit_bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100, width=32), max_size=4).map(
        lambda biases: tuple(biases.items())
    ),
)


def logits_of(rows: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(0, 3, (rows, VOCABULARY)).astype(np.float32)


@given(
    rows=st.lists(st.tuples(st.none() | PARAMETERS, TOKENS, TOKENS, TOKENS), min_size=1, max_size=4),
    steps=st.integers(0, 6),
    data=st.data(),
)
def test_every_row_of_a_batch_is_adjusted_by_the_definition(
    rows: list[tuple[SamplingParameters | None, list[int], list[int], list[int]]], steps: int, data: st.DataObject
) -> None:
    """A table made in the middle of an answer and one that has been pushed to from the start say the same."""
    fresh = [None if p is None else RowAdjustment(p, prompt + answer, len(prompt)) for p, prompt, answer, _ in rows]
    grown = [None if p is None else RowAdjustment(p, [], len(prompt)) for p, prompt, *_ in rows]
    for table, (_, prompt, answer, _) in zip(grown, rows, strict=True):
        for token in prompt + answer:
            if table is not None:
                table.push(token)
    answers = [list(answer) for _, _, answer, _ in rows]
    for step in range(steps + 1):
        logits = logits_of(len(rows), step)
        for tables in (fresh, grown):
            batch = LogitAdjustments(tables)
            got = np.array(batch.apply(mx.array(logits))) if batch.active else logits
            for row, (parameters, prompt, *_) in enumerate(rows):
                wanted = logits[row].astype(np.float64)
                if parameters is not None:
                    wanted = adjusted(wanted, parameters, prompt, answers[row])
                np.testing.assert_allclose(got[row], wanted, rtol=1e-6, atol=1e-5)
        following = [data.draw(st.integers(0, VOCABULARY - 1)) for _ in rows]
        for tables in (fresh, grown):
            LogitAdjustments(tables).push(following)
        for answer, token in zip(answers, following, strict=True):
            answer.append(token)


def test_the_model_s_own_logits_stay_as_they_are() -> None:
    logits = mx.array(logits_of(2))
    before = np.array(logits)
    row = RowAdjustment(SamplingParameters(seed=0, logit_bias=((1, 5.0),)), [], 0)
    changed = LogitAdjustments([None, row]).apply(logits)
    mx.eval(changed, logits)
    assert np.array_equal(np.array(logits), before)
    assert np.array_equal(np.array(changed)[0], before[0])  # to the last bit


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_logits_are_adjusted_in_float32(dtype: mx.Dtype) -> None:
    logits = mx.full((1, VOCABULARY), 20.0, dtype=dtype)
    row = RowAdjustment(SamplingParameters(seed=0, logit_bias=((3, 0.001),)), [], 0)
    changed = np.array(LogitAdjustments([row]).apply(logits))
    assert changed.argmax() == 3 and changed[0, 3] == np.float32(20.001)


def test_a_batch_where_nobody_asks_is_not_active() -> None:
    assert not LogitAdjustments([None, None]).active
    assert not SamplingParameters(seed=0, temperature=0.5, logprobs=3).adjusts
    asking: tuple[dict[str, Any], ...] = (
        {"frequency_penalty": -0.1},
        {"presence_penalty": 0.1},
        {"repetition_penalty": 0.9},
        {"logit_bias": ((1, 0.0),)},
    )
    for asked in asking:
        assert SamplingParameters(seed=0, **asked).adjusts


def test_a_row_s_table_holds_what_its_options_need_and_no_more() -> None:
    def ids(**options: Any) -> list[int]:
        table = RowAdjustment(SamplingParameters(seed=0, **options), [1, 2, 2, 3], 3)
        table.push(4)
        return sorted(table.columns()[0].tolist())

    assert ids(logit_bias=((9, 1.0),)) == [9]
    assert ids(presence_penalty=1.0) == [3, 4]
    assert ids(repetition_penalty=1.1, logit_bias=((2, 1.0),)) == [1, 2, 3, 4]
