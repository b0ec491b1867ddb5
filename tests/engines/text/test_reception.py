"""Who begins: by priority, by place, by memory; and what is asked of the grant meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.scheduling.waiting import Priority
from engines.text.row import RowEvent, RowStarted
from tests.engines.helpers_clock import FakeClock
from tests.engines.text.helpers_rows import (
    EOS,
    continue_alone,
    make_batcher,
    make_row,
    never,
    run,
    stock_model,
    tokens_of,
)
from tests.engines.text.test_batcher import prompt, seeded


def started(events: list[RowEvent]) -> list[int]:
    return [event.id for event in events if isinstance(event, RowStarted)]


def test_the_better_class_begins_first_and_each_class_in_its_order() -> None:
    batcher = make_batcher(stock_model("llama"), width=1, clock=FakeClock().now)
    classes: list[Priority] = ["normal", "batch", "normal", "interactive", "batch", "interactive"]
    for i, priority in enumerate(classes):
        batcher.submit(replace(make_row(i, prompt(3, i), 2), priority=priority))
    assert batcher.reception.waiting.by_priority() == {"interactive": 2, "normal": 2, "batch": 2}
    assert started(run(batcher)) == [3, 5, 0, 2, 1, 4]


def test_a_batch_row_begins_though_better_ones_never_cease_to_come() -> None:
    clock = FakeClock()
    batcher = make_batcher(stock_model("llama"), width=1, clock=clock.now)
    batcher.submit(replace(make_row(0, prompt(3, 0), 2), priority="batch"))
    events, last = list[RowEvent](), 0
    while 0 not in started(events):
        for _ in range(2):
            last += 1
            batcher.submit(replace(make_row(last, prompt(3, last), 2), priority="interactive"))
        events += batcher.step()
        clock.sleep(4.0)
        assert last < 500
    assert len(started(events)) > 5  # it did wait


def test_a_row_that_gave_way_begins_before_those_of_its_class_and_after_a_better_one() -> None:
    clock = FakeClock()
    model = stock_model("llama")
    batcher = make_batcher(model, grant=512, clock=clock.now)
    rows = [make_row(i, prompt(4, i), 30, never(seeded(i), EOS)) for i in range(3)]
    for row in rows:
        batcher.submit(row)
    events = list[RowEvent]()
    while not tokens_of(events, 1):
        events += batcher.step()
    batcher.submit(replace(make_row(3, prompt(4, 3), 3), priority="interactive"))
    batcher.reception.set_grant(256, 0)
    events += run(batcher)
    assert started(events) == [0, 1, 3, 1, 2]
    for row in rows:
        assert tokens_of(events, row.id) == continue_alone(model, row)


def test_a_batch_row_that_gave_way_does_not_wait_for_its_handicap_again() -> None:
    clock = FakeClock()
    batcher = make_batcher(stock_model("llama"), grant=512, clock=clock.now)
    batcher.submit(make_row(0, prompt(4, 0), 30, never(seeded(0), EOS)))
    batcher.submit(replace(make_row(1, prompt(4, 1), 30, never(seeded(1), EOS)), priority="batch"))
    events = list[RowEvent]()
    while not tokens_of(events, 1):
        events += batcher.step()
    clock.sleep(121.0)
    batcher.reception.set_grant(256, 0)
    batcher.submit(replace(make_row(2, prompt(4, 2), 3), priority="interactive"))
    assert started(events + run(batcher)) == [0, 1, 1, 2]


def test_a_deferred_row_begins_past_the_ceiling_by_what_rows_hold(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    first = replace(make_row(1, prompt(8, 1), 90, never(seeded(1), EOS)), least_tokens=9, expected_tokens=400)
    second = replace(make_row(2, prompt(8, 2), 12, never(seeded(2), EOS)), least_tokens=9, expected_tokens=400)
    model = stock_model("llama")
    batcher = make_batcher(model, grant=800, clock=clock.now, defer_ceiling_s=3.0)
    batcher.submit(first)
    batcher.submit(second)
    events = list[RowEvent]()
    while 2 not in started(events):
        events += batcher.step()
        clock.sleep(0.1)
        assert clock.now() < 6.0
    assert clock.now() > 3.0 and len(tokens_of(events, 1)) > 10
    assert len(batcher.reception.deferred) == 0 and "deferred for 3 s" in caplog.text
    events += run(batcher)
    assert batcher.watch.preemptions == 0
    for row in (first, second):
        assert tokens_of(events, row.id) == continue_alone(model, row)


def test_a_row_that_waits_for_memory_beside_others_asks_for_it_but_not_for_long() -> None:
    clock = FakeClock()
    batcher = make_batcher(stock_model("llama"), grant=300, clock=clock.now)
    batcher.submit(make_row(1, prompt(4, 1), 200, never(seeded(1), EOS)))
    batcher.submit(make_row(2, prompt(4, 2), 200, never(seeded(2), EOS)))
    while not batcher.reception.deferred:
        batcher.step()
    assert batcher.growth() == (2, 2 * 256 - 300)
    assert batcher.deny_growth(2, 400) == []  # there can be 100 bytes more, which is something
    assert batcher.growth() == (2, 100)
    clock.sleep(5.0)
    batcher.step()
    assert batcher.growth() is None and 2 in batcher.reception.waiting


def test_a_larger_grant_lets_the_row_in_that_asked_for_company() -> None:
    batcher = make_batcher(stock_model("llama"), grant=300)
    for i in (1, 2):
        batcher.submit(make_row(i, prompt(4, i), 100, never(seeded(i), EOS)))
    while not batcher.reception.deferred:
        batcher.step()
    growth = batcher.growth()
    assert growth is not None
    batcher.reception.set_grant(300 + growth[1], 0)
    assert batcher.step() == [RowStarted(2)] and batcher.growth() is None
