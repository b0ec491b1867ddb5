"""Backoff, deadlines and learned values."""

from __future__ import annotations

from engines.footprint import Footprint
from gateway.residency.backoff import Backoff
from gateway.residency.learned import LearnedValues
from gateway.residency.timers import Timer, TimerKind, Timers
from gateway.residency.values import LearnedValue

IDLE, LOAD = Timer(TimerKind.IDLE, "a"), Timer(TimerKind.LOAD, "b")


def test_backoff_doubles_to_a_minute() -> None:
    backoff = Backoff()
    waits = []
    now = 0.0
    for _ in range(9):
        waits.append(backoff.record(now, served=False))
        now = backoff.until
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_backoff_first_death_after_service_is_free_once_in_five_minutes() -> None:
    backoff = Backoff()
    assert backoff.record(0.0, served=True) == 0.0
    assert backoff.record(10.0, served=True) == 1.0
    assert backoff.record(20.0, served=True) == 2.0
    assert backoff.record(321.0, served=True) == 0.0
    assert backoff.record(322.0, served=True) == 1.0


def test_backoff_forgets_after_five_quiet_minutes_or_when_told() -> None:
    backoff = Backoff()
    for _ in range(3):
        backoff.record(0.0, served=False)
    assert backoff.rest(1.0) == 3.0
    assert backoff.record(301.0, served=False) == 1.0
    backoff.clear()
    assert backoff.rest(301.0) == 0.0 and backoff.record(302.0, served=False) == 1.0


def test_timers_come_in_order_and_only_the_last_setting_counts() -> None:
    timers = Timers()
    timers.set(IDLE, 5.0)
    timers.set(LOAD, 3.0)
    timers.set(IDLE, 2.0)
    assert timers.next() == 2.0 and timers.at(IDLE) == 2.0
    assert timers.pop_due(1.9) is None
    assert [timers.pop_due(9.0), timers.pop_due(9.0), timers.pop_due(9.0)] == [IDLE, LOAD, None]


def test_timers_cancelled_ones_are_not_due() -> None:
    timers = Timers()
    timers.set(IDLE, 5.0)
    timers.cancel(IDLE)
    timers.cancel(LOAD)
    assert timers.next() is None and timers.at(IDLE) is None


def test_timers_moved_ones_do_not_pile_up() -> None:
    timers = Timers()
    for at in range(10_000):
        timers.set(IDLE, float(10**6 + at))
    assert len(timers._heap) < 200
    assert timers.pop_due(2e6) == IDLE and timers.pop_due(2e6) is None


ESTIMATE = Footprint(1000, 10, 0, 4096)


def test_learned_values_rise_at_once() -> None:
    learned = LearnedValues()
    assert learned.observe("k", ESTIMATE, 1200, 12) == LearnedValue(1200, 12)
    footprint = learned.footprint("k", ESTIMATE)
    assert (footprint.static_bytes, footprint.kv_bytes_per_token, footprint.context) == (1200, 12, 4096)
    assert learned.footprint("other", ESTIMATE) is ESTIMATE


def test_learned_values_fall_after_three_equal_loads() -> None:
    learned = LearnedValues()
    for measured in (800, 801):
        learned.observe("k", ESTIMATE, measured, 0)
        assert learned.footprint("k", ESTIMATE).static_bytes == 1000
    learned.observe("k", ESTIMATE, 799, 0)
    assert learned.footprint("k", ESTIMATE).static_bytes == 801


def test_learned_values_do_not_fall_when_loads_disagree_or_reach_the_value() -> None:
    learned = LearnedValues()
    for measured in (800, 801, 600, 800, 801, 1000, 800, 801):
        learned.observe("k", ESTIMATE, measured, 0)
        assert learned.footprint("k", ESTIMATE).static_bytes == 1000


def test_learned_values_keep_static_and_kv_apart() -> None:
    learned = LearnedValues({"k": LearnedValue(500, 5)})
    assert learned.observe("k", ESTIMATE, 500, 5) is None
    value = learned.observe("k", ESTIMATE, 600, 4)
    assert value == LearnedValue(600, 5, (), (4,))
    assert learned.values == {"k": value}
