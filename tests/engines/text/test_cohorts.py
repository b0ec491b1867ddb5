"""Rows in several batches: each gets the tokens it would get alone, whoever joins, leaves, gives way or is merged."""

from __future__ import annotations

import pytest

from engines.text.row import Row, RowEvent
from tests.engines.text.helpers_rows import (
    EOS,
    GREEDY,
    continue_alone,
    make_batcher,
    make_row,
    never,
    run,
    stock_model,
    tokens_of,
)
from tests.engines.text.test_batcher import prompt, seeded

PASS_BYTES = 200  # so that padding by a step of the caches makes a batch of its own


def mixed(count: int = 5) -> list[Row]:
    """Two long rows among short ones; one byte a token, so 512 and 256 bytes."""
    shapes = [(300, 24), (5, 40), (9, 12), (310, 30), (3, 30), (12, 20)]
    return [
        make_row(i, prompt(length, i), most, seeded(i) if i % 2 else GREEDY)
        for i, (length, most) in enumerate(shapes[:count])
    ]


@pytest.mark.parametrize(("name", "runs_ahead"), [("llama", True), ("gemma3", True), ("mamba", False)])
def test_rows_in_cohorts_equal_the_rows_alone(name: str, runs_ahead: bool) -> None:
    model = stock_model(name)
    batcher = make_batcher(model, width=6, chunk=400, runs_ahead=runs_ahead, pass_bytes=PASS_BYTES, grant=10**6)
    for row in mixed():
        batcher.submit(row)
    shapes = set[tuple[int, ...]]()
    events = list[RowEvent]()
    while batcher.busy:
        events += batcher.step()
        shapes.add(tuple(sorted(len(batch.uids) for batch in batcher.running.cohorts.batches)))
    assert max(map(len, shapes)) == 2
    for row in mixed():
        assert tokens_of(events, row.id) == continue_alone(model, row)
    assert batcher.kv_bytes == 0


def test_a_cohort_loses_a_row_and_another_goes_without_disturbing_any() -> None:
    model = stock_model("gemma3")
    rows = mixed()
    batcher = make_batcher(model, width=6, chunk=400, pass_bytes=PASS_BYTES, grant=10**6)
    for row in rows:
        batcher.submit(row)
    events = list[RowEvent]()
    while not tokens_of(events, 4):
        events += batcher.step()
    cohorts = batcher.running.cohorts
    assert len(cohorts.batches) == 2
    assert batcher.cancel(0) and batcher.cancel(1) and len(cohorts.batches) == 2
    assert batcher.cancel(3) and len(cohorts.batches) == 1
    events += run(batcher)
    for row in (rows[2], rows[4]):
        assert tokens_of(events, row.id) == continue_alone(model, row)


def test_cohorts_that_have_come_near_each_other_are_merged_exactly() -> None:
    """Short rows grow into the step of the long one: then padding is nothing, and one pass serves all."""
    model = stock_model("gemma3")
    rows = [
        make_row(0, prompt(260, 0), 240),
        make_row(1, prompt(200, 1), 260, never(seeded(5), EOS)),
        make_row(2, prompt(190, 2), 270),
    ]
    batcher = make_batcher(model, chunk=400, pass_bytes=100, grant=10**6)
    for row in rows:
        # Projected short, as an answer without max_tokens is.
        length = len(row.tokens) + 1
        batcher.submit(Row(row.id, row.tokens, row.max_tokens, length, length, row.sampling))
    events = list[RowEvent]()
    counts, merged = list[int](), False
    while batcher.busy:
        events += batcher.step()
        counts.append(len(batcher.running.cohorts.batches))
        merged = merged or (counts[-1] == 1 and 2 in counts and len(batcher.running.cohorts) == 3)
    assert max(counts) == 2 and merged
    for row in rows:
        assert tokens_of(events, row.id) == continue_alone(model, row)


def test_where_one_batch_would_not_fit_the_grant_two_do() -> None:
    model = stock_model("llama")
    rows = mixed(3)  # together 3 x 512; the last apart, 2 x 512 + 256
    batcher = make_batcher(model, chunk=400, grant=1280)
    for row in rows:
        batcher.submit(row)
    events = list[RowEvent]()
    most = 0
    while batcher.busy:
        events += batcher.step()
        most = max(most, len(batcher.running.cohorts))
    assert most == 3 and batcher.watch.preemptions == 0
    for row in rows:
        assert tokens_of(events, row.id) == continue_alone(model, row)
