"""Bands and reliefs, by numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.scheduling.governor import (
    DWELL_S,
    ORANGE,
    RED,
    SETTLE_TICKS,
    SHEDS_A_MINUTE,
    YELLOW,
    Action,
    Governor,
    Reading,
    Relief,
)

TICK_S = 0.02
BANDS = ("green", "yellow", "orange", "red")


class Memory:
    """So many bytes, of which ``growth`` more are taken each tick."""

    def __init__(self, limit: int, growth: int, used: int = 0) -> None:
        self.governor = Governor()
        self.limit, self.growth, self.used = limit, growth, used
        self.now = 0.0
        self.bands = list[str]()

    def tick(self, count: int = 1, *, demand_bytes: int | None = None, step_bytes: int = 0, step_ticks: int = 0) -> str:
        for _ in range(count):
            self.used += self.growth
            self.now += TICK_S
            reading = Reading(self.used, self.limit - self.used, demand_bytes, step_bytes, step_ticks)
            self.bands.append(self.governor.observe(reading, self.now))
        return self.bands[-1]

    def tick_to(self, band: str) -> Governor:
        while self.tick() != band:
            assert self.used < self.limit
        return self.governor


def test_bands_come_with_the_ticks_that_are_left() -> None:
    memory = Memory(limit=100_000, growth=100)
    assert memory.tick(1000 - YELLOW) == "green"
    assert memory.governor.ticks_left == YELLOW and memory.governor.growth_bytes_s == pytest.approx(5000)
    assert memory.tick() == "yellow"
    assert memory.tick(YELLOW - ORANGE - 1) == "yellow" and memory.tick() == "orange"
    assert memory.tick(ORANGE - RED - 1) == "orange" and memory.tick() == "red"


def test_full_memory_that_does_not_grow_is_green() -> None:
    assert Memory(limit=100, growth=0, used=100 - 1).tick(100) == "green"


def test_rows_that_end_before_memory_does_are_green_however_fast_they_grow() -> None:
    memory = Memory(limit=1000, growth=100)
    assert memory.tick(9, demand_bytes=100) == "green"
    assert memory.tick(1, demand_bytes=1) == "yellow"


def test_without_a_bound_there_is_no_end() -> None:
    governor = Governor()
    assert [governor.observe(Reading(used, None), float(used)) for used in range(0, 10**6, 10**5)] == ["green"] * 10
    assert governor.headroom_bytes is None


def test_one_large_step_is_no_trend() -> None:
    memory = Memory(limit=10_000, growth=1)
    memory.tick(300)
    memory.used += 4000
    memory.tick(100)
    assert memory.bands[-1] == "green" and "orange" not in memory.bands
    assert memory.governor.ticks_left > 2 * YELLOW


def test_rows_that_leave_do_not_hide_growth() -> None:
    memory = Memory(limit=100_000, growth=100)
    memory.tick(500)
    memory.used -= 30_000
    memory.tick()
    assert memory.governor.growth_bytes_s == pytest.approx(100 / TICK_S, rel=0.1)


def test_a_step_that_will_not_fit_counts_from_when_it_comes() -> None:
    """Caches grow by the step: between two of them a rate says nothing."""
    memory = Memory(limit=1000, growth=0, used=900)
    assert memory.tick(5, demand_bytes=500, step_bytes=100, step_ticks=10) == "green"
    assert memory.tick(5, demand_bytes=500, step_bytes=101, step_ticks=ORANGE) == "yellow"
    assert memory.tick(5, demand_bytes=500, step_bytes=101, step_ticks=ORANGE - 1) == "orange"


def test_a_full_grant_lasts_until_its_next_step_and_a_full_device_does_not() -> None:
    governor = Governor()
    governor.observe(Reading(0, 0, 500, step_bytes=100, step_ticks=50, grant_ends_first=True), 0.0)
    assert governor.ticks_left == 50
    governor.observe(Reading(0, 0, 500, step_bytes=100, step_ticks=50), 0.1)
    assert governor.ticks_left == 0


def test_a_step_that_has_just_come_does_not_hasten_the_next() -> None:
    """Rows that grow by 2560 bytes each 256 ticks; the third step will not fit, and there is time until it comes."""
    memory = Memory(limit=3 * 2560 - 1, growth=0, used=0)
    for tick in range(2 * 256 + 1):
        memory.used += 2560 if tick in (128, 384) else 0
        memory.tick(demand_bytes=10**5, step_bytes=2560, step_ticks=(127 - tick) % 256)
    assert "yellow" in memory.bands and "orange" not in memory.bands
    assert memory.governor.ticks_left == (127 - 512) % 256


def test_a_band_worsens_by_one_a_tick_and_improves_by_one_after_its_dwell() -> None:
    memory = Memory(limit=0, growth=0)
    memory.tick(4)
    memory.limit = 10**6
    memory.tick(int(5 * DWELL_S / TICK_S))
    assert memory.bands[:4] == ["yellow", "orange", "red", "red"]
    changes = [i for i in range(1, len(memory.bands)) if memory.bands[i] != memory.bands[i - 1]]
    assert [memory.bands[i] for i in changes] == ["orange", "red", "orange", "yellow", "green"]
    assert all((later - earlier) * TICK_S >= DWELL_S for earlier, later in pairwise(changes[1:]))


def test_only_green_lets_rows_begin_beside_others_and_has_whole_chunks() -> None:
    memory = Memory(limit=10**6, growth=0)
    memory.tick()
    governor = memory.governor
    assert governor.admits(3) and governor.chunk(512) == 512
    memory.limit = 0
    assert memory.tick() == "yellow"
    assert not governor.admits(3) and governor.admits(0)
    assert (governor.chunk(512), governor.chunk(1)) == (256, 1)


def test_orange_sheds_caches_and_then_preempts_the_largest() -> None:
    memory = Memory(limit=10**6, growth=1000)
    governor = memory.tick_to("orange")
    rows = {1: 50, 2: 90, 3: 90}
    reliefs = []
    for _ in range(4 * SETTLE_TICKS):
        reliefs.append(governor.relief(rows, memory.now))
        memory.tick()
    done = [(i, relief) for i, relief in enumerate(reliefs) if relief.action is not Action.NONE]
    assert done == [
        (0, Relief(Action.SHED)),
        (SETTLE_TICKS, Relief(Action.PREEMPT, 3)),
        (2 * SETTLE_TICKS, Relief(Action.PREEMPT, 3)),
        (3 * SETTLE_TICKS, Relief(Action.PREEMPT, 3)),
    ]
    assert (governor.sheds, governor.preemptions, governor.failures) == (1, 3, 0)


def test_a_row_alone_is_not_preempted() -> None:
    memory = Memory(limit=10**6, growth=1000)
    governor = memory.tick_to("orange")
    assert governor.relief({1: 50}, memory.now).action is Action.SHED
    memory.tick(2 * SETTLE_TICKS)
    assert governor.relief({1: 50}, memory.now).action is Action.NONE


def test_red_fails_a_row_alone_and_none_twice() -> None:
    memory = Memory(limit=0, growth=0)
    memory.tick(3)
    reliefs = []
    for _ in range(4):
        reliefs.append(memory.governor.relief({1: 50}, memory.now))
        memory.tick(SETTLE_TICKS)
    assert reliefs == [Relief(Action.SHED), Relief(Action.FAIL, 1), Relief(Action.NONE), Relief(Action.NONE)]
    assert memory.governor.failures == 1


def test_red_fails_the_largest_row_once_no_more_may_be_preempted() -> None:
    memory = Memory(limit=0, growth=0)
    memory.tick(3)
    reliefs = []
    for _ in range(SHEDS_A_MINUTE + 3):
        reliefs.append(memory.governor.relief({1: 50, 2: 90}, memory.now))
        memory.tick(SETTLE_TICKS)
    assert reliefs == [
        Relief(Action.SHED),
        *[Relief(Action.PREEMPT, 2)] * (SHEDS_A_MINUTE - 1),
        Relief(Action.FAIL, 2),
        Relief(Action.FAIL, 1),
        Relief(Action.NONE),
    ]


def test_where_the_grant_ends_first_rows_give_way_and_none_fails() -> None:
    governor, reliefs = Governor(), list[Relief]()
    for tick in range(4 + 20 * SETTLE_TICKS):
        governor.observe(Reading(100, 0, grant_ends_first=True), tick * TICK_S)
        reliefs.append(governor.relief({1: 50, 2: 90}, tick * TICK_S))
    assert governor.band == "red"
    assert [relief.action for relief in reliefs if relief.action is not Action.NONE] == [
        Action.SHED,
        *[Action.PREEMPT] * (SHEDS_A_MINUTE - 1),
    ]


def test_what_only_the_dwell_holds_is_not_acted_upon() -> None:
    memory = Memory(limit=0, growth=0)
    memory.tick(3)
    memory.limit = 10**6
    assert memory.tick() == "red"
    assert memory.governor.relief({1: 50, 2: 90}, memory.now).action is Action.NONE


def test_sheds_are_capped_by_the_minute() -> None:
    memory = Memory(limit=10**7, growth=0, used=0)
    governor = memory.governor
    times = []
    for _ in range(int(90 / TICK_S)):
        memory.tick(1, demand_bytes=10**8, step_bytes=10**8, step_ticks=ORANGE - 1)
        if governor.relief({1: 50, 2: 90}, memory.now).action is not Action.NONE:
            times.append(memory.now)
    assert len(times) == 2 * SHEDS_A_MINUTE
    assert times[SHEDS_A_MINUTE] - times[0] >= 60.0


def test_a_memory_error_sets_the_largest_row_back_once_and_then_fails_it() -> None:
    governor = Governor()
    assert governor.memory_error({1: 50, 2: 90}, 1.0) == Relief(Action.PREEMPT, 2)
    assert governor.band == "red" and not governor.admits(1)
    assert governor.memory_error({1: 50, 3: 60}, 2.0) == Relief(Action.PREEMPT, 3)
    assert governor.memory_error({2: 90}, 3.0) == Relief(Action.FAIL, 2)
    governor.forget(3)
    assert governor.memory_error({3: 60}, 4.0) == Relief(Action.PREEMPT, 3)
    assert (governor.preemptions, governor.failures) == (3, 1)


@settings(max_examples=80)
@given(
    ticks=st.lists(
        st.tuples(st.integers(0, 2000), st.integers(-5000, 5000), st.floats(0.001, 0.5), st.integers(0, 3)),
        max_size=120,
    )
)
def test_whatever_memory_does_bands_dwell_and_reliefs_settle(ticks: list[tuple[int, int, float, int]]) -> None:
    governor = Governor()
    now, band, entered, since_relief, reliefs = 0.0, 0, -100.0, 100, list[float]()
    failed = set[int]()
    for used, headroom, seconds, count in ticks:
        now += seconds
        since_relief += 1
        new = BANDS.index(governor.observe(Reading(used, headroom), now))
        assert abs(new - band) <= 1
        if new < band:
            assert now - entered >= DWELL_S
        if new != band:
            band, entered = new, now
        relief = governor.relief({row: row for row in range(1, count + 1)}, now)
        if relief.action is Action.NONE:
            continue
        assert band >= 2 and since_relief >= SETTLE_TICKS
        since_relief = 0
        if relief.action is Action.FAIL:
            assert BANDS[band] == "red" and relief.row_id not in failed
            failed |= {relief.row_id or 0}
        else:
            reliefs.append(now)
            assert sum(now - 60 < at for at in reliefs) <= SHEDS_A_MINUTE
        assert relief.action is not Action.PREEMPT or count > 1
