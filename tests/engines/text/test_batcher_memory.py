"""Memory comes to its end: rows give way, go on exactly where they were, and fail only where nothing else is left."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from engines.text import cache_room
from engines.text.row import Row, RowEvent, RowOutOfMemory, RowStarted, RowToken
from tests.engines.helpers_clock import FakeClock
from tests.engines.text.helpers_faulty_model import FaultyModel
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
from tests.engines.text.test_batcher import ADJUSTED, prompt, seeded

MARK = 95  # a token that no other row reads


def rows_of(model: Any) -> list[Row]:
    samplings = (GREEDY, seeded(1), replace(seeded(2), **ADJUSTED))
    return [make_row(i, prompt((9, 4, 14)[i], i), (10, 14, 6)[i], sampling) for i, sampling in enumerate(samplings)]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("name", "runs_ahead"), [("llama", True), ("llama", False), ("gemma3", True), ("mamba", False)]
)
def test_a_memory_error_at_any_call_changes_no_answer(name: str, runs_ahead: bool, late: bool) -> None:
    stock = stock_model(name)
    alone = {row.id: continue_alone(stock, row) for row in rows_of(stock)}
    for at in range(1, 40, 3):
        model = FaultyModel(stock, [at], late=at % 2 == 0)
        batcher = make_batcher(model, chunk=5, runs_ahead=runs_ahead)
        for row in rows_of(stock):
            batcher.submit(row)
        events = run(batcher)
        assert {row_id: tokens_of(events, row_id) for row_id in alone} == alone, at
        ends = Counter(event.id for event in events if isinstance(event, RowToken) and event.finish)
        assert ends == {0: 1, 1: 1, 2: 1}
        assert batcher.kv_bytes == 0 and batcher.watch.failures == 0
        if not model.faults:
            return
    raise AssertionError("the schedule is longer than the calls that were tried")


def test_a_row_over_which_memory_runs_out_again_fails_alone() -> None:
    stock = stock_model("llama")
    others = [make_row(i, prompt(6, i), 20, never(seeded(i), MARK)) for i in (1, 2)]
    culprit = make_row(3, [*prompt(10, 3), MARK, *prompt(10, 4)], 8)

    def reads_the_mark(ids: mx.array) -> bool:
        return MARK in ids.flatten().tolist()  # type: ignore[operator]

    model = FaultyModel(stock, when=reads_the_mark)
    batcher = make_batcher(model, chunk=4)
    for row in (*others, culprit):
        batcher.submit(row)
    events = run(batcher)
    assert [event for event in events if isinstance(event, RowOutOfMemory)] == [RowOutOfMemory(3, 21)]
    assert model.faults == 2 and batcher.watch.failures == 1
    assert tokens_of(events, 3) == []
    for row in others:
        assert tokens_of(events, row.id) == continue_alone(stock, row)


def test_a_row_alone_over_which_every_step_fails_ends_after_the_second_try() -> None:
    model = FaultyModel(stock_model("llama"), when=lambda ids: ids.shape[1] == 1)
    batcher = make_batcher(model)
    batcher.submit(make_row(1, prompt(5, 1)))
    events = run(batcher)
    assert isinstance(events[-1], RowOutOfMemory) and model.faults == 2 and not batcher.busy


def test_an_error_that_is_none_of_memory_is_not_swallowed() -> None:
    model = FaultyModel(stock_model("llama"), [3], error=RuntimeError("a kernel divided by zero"))
    batcher = make_batcher(model)
    batcher.submit(make_row(1, prompt(5, 1)))
    with pytest.raises(RuntimeError, match="divided"):
        run(batcher)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("std::bad_alloc"), RuntimeError("CUDA error: out of memory")]
)
def test_memory_errors_are_known_by_their_kind_and_text(error: Exception) -> None:
    stock = stock_model("llama")
    row = make_row(1, prompt(5, 1))
    batcher = make_batcher(FaultyModel(stock, [4], error=error))
    batcher.submit(row)
    assert tokens_of(run(batcher), 1) == continue_alone(stock, row)


def test_memory_that_runs_out_as_a_row_is_cancelled_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stock_model("llama")
    rows = [make_row(i, prompt(5 + i, i), 16, seeded(i)) for i in range(3)]
    batcher = make_batcher(model)
    for row in rows:
        batcher.submit(row)
    events = list[RowEvent]()
    while not tokens_of(events, 2):
        events += batcher.step()

    def fails(*_: Any) -> None:
        monkeypatch.undo()
        raise MemoryError

    monkeypatch.setattr("engines.text.decoding_batch.keep_rows", fails)
    assert batcher.cancel(1)
    events += run(batcher)
    assert cache_room.keep_rows is not fails
    for row in (rows[0], rows[2]):
        assert tokens_of(events, row.id) == continue_alone(model, row)
    assert len(tokens_of(events, 1)) < 16


def test_after_a_memory_error_rows_in_company_hold_less_than_then_for_a_while() -> None:
    clock = FakeClock()
    stock = stock_model("llama")
    rows = [make_row(i, prompt(5, i), 120, never(seeded(i), EOS)) for i in range(4)]
    model = FaultyModel(stock, [30])
    batcher = make_batcher(model, grant=4 * 256, clock=clock.now)
    for row in rows:
        batcher.submit(row)
    most = 0
    events = list[RowEvent]()
    while batcher.busy:
        events += batcher.step()
        clock.sleep(0.1)
        if model.faults:
            most = max(most, len(batcher.running.cohorts))
    assert model.faults == 1 and most == 3  # four rows of 256 tokens were one too many
    for row in rows:
        assert tokens_of(events, row.id) == continue_alone(stock, row)


# --- the device has less than the grant ---


def test_where_the_device_comes_to_its_end_rows_give_way_and_at_last_the_one_left_fails() -> None:
    clock = FakeClock()
    model = stock_model("llama")
    left = [10**9]
    endless = never(GREEDY, EOS)
    rows = [make_row(i, prompt(150 + 10 * i, i), 120, endless) for i in range(3)]
    batcher = make_batcher(model, chunk=200, clock=clock.now, device_headroom=lambda: left[0])
    for row in rows:
        batcher.submit(row)
    events = list[RowEvent]()
    while not tokens_of(events, 2):
        events += batcher.step()
        clock.sleep(0.01)
    assert batcher.watch.governor.band == "green"
    left[0] = 0
    begun = sum(isinstance(event, RowStarted) for event in events)
    while not batcher.watch.failures:
        events += batcher.step()
        clock.sleep(0.01)
    watch = batcher.watch
    assert (watch.governor.band, watch.sheds, watch.preemptions, watch.failures) == ("red", 1, 2, 1)
    before = events[: next(i for i, event in enumerate(events) if isinstance(event, RowOutOfMemory))]
    assert sum(isinstance(event, RowStarted) for event in before) == begun  # none begins beside others
    left[0] = 10**9
    while batcher.busy:
        events += batcher.step()
        clock.sleep(0.01)
    (failed,) = (event.id for event in events if isinstance(event, RowOutOfMemory))
    for row in rows:
        alone = continue_alone(model, row)
        assert tokens_of(events, row.id) == (alone[: len(tokens_of(events, row.id))] if row.id == failed else alone)


def test_rows_in_company_begin_only_where_the_device_has_their_room_too() -> None:
    """The grant would do for both; a lone row begins all the same."""
    clock = FakeClock()
    model = stock_model("llama")
    left = [200]  # bytes, and tokens: less than a step of the caches
    batcher = make_batcher(model, chunk=200, grant=4096, clock=clock.now, device_headroom=lambda: left[0])
    endless = never(GREEDY, EOS)
    for i in range(2):
        batcher.submit(make_row(i, prompt(200, i), 40, endless))
    events = list[RowEvent]()
    for _ in range(20):
        events += batcher.step()
        clock.sleep(0.01)
    assert [event.id for event in events if isinstance(event, RowStarted)] == [0]
    assert [row.id for row in batcher.reception.waiting] == [1] and 1 in batcher.reception.deferred
    left[0] = 10**9
    while not tokens_of(events, 1):
        events += batcher.step()
        clock.sleep(0.01)


def test_a_full_grant_makes_rows_give_way_and_fails_none() -> None:
    """Open-ended rows that were projected short and all grow: each is preempted in its turn, none fails."""
    model = stock_model("llama")
    rows = [
        replace(make_row(i, prompt(200, i), 90, never(seeded(i), EOS)), least_tokens=201, expected_tokens=240)
        for i in range(3)
    ]
    batcher = make_batcher(model, chunk=300, grant=3 * 256)
    for row in rows:
        batcher.submit(row)
    events = run(batcher)
    assert batcher.watch.preemptions > 0 and batcher.watch.failures == 0
    for row in rows:
        assert tokens_of(events, row.id) == continue_alone(model, row)


def test_what_a_long_prompt_takes_is_no_growth_and_makes_nobody_give_way() -> None:
    model = stock_model("llama")
    endless = never(GREEDY, EOS)
    rows = [
        replace(make_row(i, prompt(5, i), 5000, endless), least_tokens=6, expected_tokens=300) for i in range(2)
    ]  # they may yet take more than there is
    batcher = make_batcher(model, chunk=300, grant=8192)
    for row in rows:
        batcher.submit(row)
    bands = set[str]()
    for _ in range(60):
        batcher.step()
    batcher.submit(make_row(2, prompt(2500, 2), 10))
    events = list[RowEvent]()
    while not any(isinstance(event, RowToken) and event.id == 2 and event.finish for event in events):
        events += batcher.step()
        bands.add(batcher.watch.governor.band)
    assert bands == {"green"} and batcher.watch.preemptions == 0
