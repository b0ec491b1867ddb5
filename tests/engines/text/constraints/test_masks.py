"""Masks over logits."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from engines.text.constraints import masks
from engines.text.constraints.masks import ConstraintStage
from engines.text.constraints.row_constraint import ConstraintPlan, RowConstraint
from tests.engines.text.constraints.helpers_constraints import allowed, grammar_of, ids, vocabulary

SIZE = vocabulary().size


def bound(regex: str, answered: str = "") -> RowConstraint:
    tokens = ids(answered)
    row = RowConstraint(ConstraintPlan(vocabulary(), grammar_of(regex)), tokens)
    row.push(tokens[-1] if tokens else 0)
    return row


def logits(rows: int, width: int = SIZE, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal((rows, width), key=mx.random.key(3)).astype(dtype)


@pytest.mark.parametrize("width", [SIZE, SIZE + 37, SIZE - 5])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("kind", ["_AddedMask", "_SelectedMask"])
def test_mask_keeps_the_logits_of_allowed_tokens_and_no_others(
    width: int, dtype: mx.Dtype, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("_AddedMask", "_SelectedMask"):  # the one for a CPU and the one for a GPU run on either
        monkeypatch.setattr(masks, other, getattr(masks, kind))
    rows = [bound("the (room|key)"), None, bound('\\{"a": 1\\}', '{"a": '), bound("[a-z]+", "room"), None]
    before = logits(5, width, dtype)
    stage = ConstraintStage(rows)
    stage.apply(before * 2)  # what a mask keeps from the step before is of no consequence
    after = stage.apply(before)
    assert after.dtype == dtype
    plain, masked = (np.array(each.astype(mx.float32)) for each in (before, after))
    for place, row in enumerate(rows):
        may = set(range(width)) if row is None else {token for token in allowed(row) if token < width}
        assert set(np.flatnonzero(masked[place] > -np.inf).tolist()) == may
        np.testing.assert_array_equal(masked[place][sorted(may)], plain[place][sorted(may)])
    assert np.all(np.array(before.astype(mx.float32)) == plain)


def test_rows_that_are_bound_to_nothing_cost_nothing() -> None:
    stage = ConstraintStage([None, None])
    before = logits(2)
    assert not stage.active
    assert stage.apply(before) is before


@pytest.mark.parametrize("cores", [1, 16])
def test_mask_follows_its_rows_from_step_to_step(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "usable_cores", lambda: cores)
    rows = [bound("(the|a) (room|key)[a-z]*"), bound("[a-z]*")]
    stage = ConstraintStage(rows)
    for token in ids("the room") + ids("s"):
        masked = np.array(stage.apply(logits(2)))
        for place, row in enumerate(rows):
            assert set(np.flatnonzero(masked[place] > -np.inf).tolist()) == allowed(row)
        stage.push([token, ids("a")[0]])


def test_stage_hands_each_row_its_own_token() -> None:
    rows = [bound("the room|then"), None, bound("key|king")]
    stage = ConstraintStage(rows)
    assert stage.active
    stage.push([ids("the")[0], 5, ids("k")[0]])
    assert rows[0] is not None and rows[2] is not None
    assert ids("n")[0] in allowed(rows[0])
    assert ids("i")[0] in allowed(rows[2])


def test_row_whose_grammar_failed_is_named_and_left_unbound() -> None:
    good, bad = bound("the room"), bound("key")
    bad.failure = "it became too complex"
    stage = ConstraintStage([good, bad])
    after = np.array(stage.apply(logits(2)))
    assert np.all(after[1] > -np.inf)
    assert np.any(after[0] == -np.inf)
