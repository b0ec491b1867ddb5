"""Turns of prefill and decode, on modelled devices."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import pytest

from engines.scheduling.pacing import DWELL_S, GRACE_S, Pacer
from engines.scheduling.settings import SchedulingSettings

STEP_S = 0.02
OLD, PROMPT = 1, 9
AUTO = 0.84 / 0.16  # of the default retention, 0.8
LONG = 1e6  # seconds


class Device:
    """Rows that decode in STEP_S and chunks that last ``chunk_s``; beside a prompt steps last ``slowed`` times as long. Each token
    of the rows' contexts, which grow, adds ``token_s`` to a step."""

    def __init__(
        self,
        settings: SchedulingSettings | None = None,
        *,
        chunk_s: float = 0.5,
        slowed: float = 1.0,
        token_s: float = 0.0,
    ) -> None:
        self.pacer = Pacer(settings)
        self.chunk_s, self.slowed, self.token_s = chunk_s, slowed, token_s
        self.tokens = 100
        self.prefill_s = self.decode_s = 0.0

    def decode(self, seconds: float, rows: Collection[int] = (OLD,)) -> None:
        """With nothing beside it."""
        for _ in range(round(seconds / STEP_S)):
            assert self.pacer.turn(prefilling=False, decoding=True) == "decode"
            self.pacer.decoded(rows, self.step_s(rows), tokens=self.tokens)

    def step_s(self, rows: Collection[int]) -> float:
        self.tokens += len(rows)
        return STEP_S + self.tokens * self.token_s

    def share(
        self,
        ticks: int,
        rows: Collection[int] = (OLD,),
        waiting: Collection[int] = (PROMPT,),
        deferred: Collection[int] = (),
    ) -> list[str]:
        """Ticks with a prompt to read beside these rows."""
        turns = list[str]()
        for _ in range(ticks):
            turns.append(self.pacer.turn(prefilling=True, decoding=True))
            if turns[-1] == "prefill":
                self.pacer.observe(100, self.chunk_s)
                self.prefill_s += self.chunk_s
            else:
                seconds = self.step_s(rows) * self.slowed
                self.pacer.decoded(rows, seconds, waiting, deferred, tokens=self.tokens)
                self.decode_s += seconds
        return turns


def test_before_a_step_is_measured_turns_alternate() -> None:
    pacer = Pacer()
    assert [pacer.turn(prefilling=True, decoding=True) for _ in range(4)] == ["prefill", "decode", "prefill", "decode"]


def test_without_rows_that_decode_prefill_runs_at_full_speed() -> None:
    device = Device()
    device.decode(5.0)
    for _ in range(50):
        assert device.pacer.turn(prefilling=True, decoding=False) == "prefill"
        device.pacer.observe(100, 0.5)
    assert device.share(2) == ["decode", "prefill"]  # chunks that no row waited for are owed to none


@pytest.mark.parametrize(("retention", "ratio"), [(0.8, 0.84 / 0.16), (0.5, 0.54 / 0.46), (0.95, 0.96 / 0.04)])
def test_a_running_stream_keeps_its_share(retention: float, ratio: float) -> None:
    device = Device(SchedulingSettings(retention=retention, prefill_deadline_s=LONG))
    device.decode(GRACE_S)
    assert device.pacer.ratio == pytest.approx(ratio)
    turns = device.share(3000)
    chunks = [i for i, turn in enumerate(turns) if turn == "prefill"]
    assert chunks[0] == 0  # the first chunk does not wait
    gaps = {later - earlier for earlier, later in pairwise(chunks)}
    assert gaps <= {round(ratio * 0.5 / STEP_S) + 1, round(ratio * 0.5 / STEP_S) + 2}
    assert device.decode_s / (device.decode_s + device.prefill_s) >= retention


def test_a_set_ratio_is_kept_whatever_it_costs() -> None:
    device = Device(SchedulingSettings(prefill_ratio=2.0, prefill_deadline_s=LONG), slowed=1.5)
    device.decode(GRACE_S)
    device.share(3000)
    assert device.pacer.ratio == 2.0
    assert device.decode_s / device.prefill_s == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("prompts", "ratio"), [(1, AUTO), (2, 2.0), (4, 1.0), (8, 0.5), (30, 0.5)])
def test_each_of_several_prompts_has_its_share_of_the_time(prompts: int, ratio: float) -> None:
    device = Device(SchedulingSettings(prefill_deadline_s=LONG))
    device.decode(GRACE_S)
    device.share(2000, waiting=range(PROMPT, PROMPT + prompts))
    assert device.pacer.ratio == pytest.approx(ratio)
    assert device.decode_s / device.prefill_s == pytest.approx(ratio, rel=0.1)
    set_ratio = Device(SchedulingSettings(prefill_ratio=3.0, prefill_deadline_s=LONG))
    set_ratio.decode(GRACE_S)
    set_ratio.share(100, waiting=range(PROMPT, PROMPT + prompts))
    assert set_ratio.pacer.ratio == 3.0


def test_a_low_retention_is_not_raised_by_a_crowd() -> None:
    device = Device(SchedulingSettings(retention=0.2))
    device.decode(GRACE_S)
    device.share(100, waiting=(PROMPT, 10, 11))
    assert device.pacer.ratio == pytest.approx(0.25)


def test_a_ratio_of_nothing_alternates() -> None:
    device = Device(SchedulingSettings(prefill_ratio=0.0))
    device.decode(GRACE_S)
    assert device.share(4) == ["prefill", "decode"] * 2


def test_the_ratio_rises_where_steps_are_slower_beside_a_prompt_and_falls_again() -> None:
    device = Device(SchedulingSettings(prefill_deadline_s=LONG), slowed=1.1)
    device.decode(GRACE_S)
    ratios = [AUTO]
    for _ in range(6):
        device.share(int(2 * DWELL_S / STEP_S))
        ratios.append(device.pacer.ratio)
    assert AUTO < max(ratios) <= 2 * AUTO
    before = device.decode_s, device.prefill_s
    device.share(5000)
    decoded, read = device.decode_s - before[0], device.prefill_s - before[1]
    assert 0.8 <= decoded / device.slowed / (decoded + read) < 0.85
    device.slowed = 1.0
    device.share(int(8 * DWELL_S / STEP_S))
    assert device.pacer.ratio == pytest.approx(AUTO, rel=0.3) and device.pacer.ratio < max(ratios)


def test_a_stream_that_slows_as_its_context_grows_is_not_taken_for_one_that_is_held_up() -> None:
    device = Device(SchedulingSettings(prefill_deadline_s=LONG), token_s=STEP_S / 1000)
    device.decode(5.0)
    assert device.tokens < 400
    device.share(3000)
    assert device.tokens > 2500 and device.pacer.ratio == pytest.approx(AUTO)
    device.slowed = 1.2  # and still is when it is one
    device.share(1000)
    assert device.pacer.ratio > 1.2 * AUTO


@pytest.mark.parametrize("retention", [0.3, 0.9, 0.95, 0.99])
def test_a_ratio_that_rose_falls_again_whatever_the_retention(retention: float) -> None:
    device = Device(SchedulingSettings(retention=retention, prefill_deadline_s=LONG), slowed=8.0)
    device.decode(GRACE_S)
    device.share(5000)
    aim = retention + min(0.04, (1 - retention) / 5)
    least = aim / (1 - aim)
    assert device.pacer.ratio == pytest.approx(2 * least)
    device.slowed = 1.0
    device.share(20000)
    assert device.pacer.ratio == pytest.approx(least, rel=0.05)


def test_the_ratio_is_never_more_than_doubled() -> None:
    device = Device(SchedulingSettings(prefill_deadline_s=LONG), slowed=3.0)
    device.decode(GRACE_S)
    device.share(5000)
    assert device.pacer.ratio == pytest.approx(2 * AUTO)


def test_the_ratio_does_not_change_within_its_dwell() -> None:
    device = Device(SchedulingSettings(prefill_deadline_s=LONG), slowed=3.0)
    device.decode(GRACE_S)
    ratios = []
    while device.decode_s + device.prefill_s < 60:
        device.share(1)
        ratios.append((device.decode_s + device.prefill_s, device.pacer.ratio))
    changes = [at for (_, before), (at, ratio) in pairwise(ratios) if ratio != before]
    assert len(changes) >= 3
    assert all(later - earlier >= DWELL_S for earlier, later in pairwise(changes))


def test_rows_that_have_just_begun_hold_no_prompt_back() -> None:
    device = Device()
    device.decode(STEP_S)
    assert device.share(6) == ["prefill", "decode"] * 3
    device.decode(GRACE_S)
    assert device.share(40, rows=(OLD, 2)).count("prefill") == 1  # one of them is fresh, the other is not


def test_fresh_rows_are_those_of_less_than_the_grace() -> None:
    device = Device(chunk_s=0.5)
    device.decode(STEP_S)
    turns = device.share(200)
    assert turns[:8] == ["prefill", "decode"] * 4  # 4 × 0.52 s: it is fresh no longer
    assert "prefill" not in turns[8 : 8 + 90]


def test_past_the_deadline_prefill_takes_half_of_the_time_until_the_prompt_is_read() -> None:
    device = Device(SchedulingSettings(retention=0.99, prefill_deadline_s=10.0))
    device.decode(GRACE_S)
    device.share(int(10 / STEP_S) - 2)
    assert not device.pacer.overdue and device.pacer.ratio == pytest.approx(1 / 0.008 - 1)
    device.share(6)
    assert device.pacer.overdue and device.pacer.ratio == 1.0
    before = device.decode_s, device.prefill_s
    device.share(1000)
    assert device.prefill_s - before[1] == pytest.approx(device.decode_s - before[0], rel=0.1)
    device.share(100, waiting=(8,))  # the next prompt
    assert not device.pacer.overdue


def test_a_prompt_that_left_is_overdue_no_longer() -> None:
    device = Device(SchedulingSettings(prefill_deadline_s=10.0))
    device.decode(GRACE_S)
    device.share(int(12 / STEP_S), waiting=(PROMPT, 10))
    assert device.pacer.overdue
    device.pacer.forget(PROMPT)
    device.pacer.forget(10)
    assert not device.pacer.overdue and device.pacer.ratio == pytest.approx(AUTO)


def test_the_deadline_counts_those_behind_and_no_waits_for_memory() -> None:
    device = Device(SchedulingSettings(retention=0.99, prefill_deadline_s=10.0))
    device.decode(GRACE_S)
    device.share(int(6 / STEP_S), waiting=(PROMPT, 10), deferred=(11,))
    device.share(int(6 / STEP_S), waiting=(12,), deferred=(10, 11))
    assert not device.pacer.overdue  # 10 waits for memory now
    device.share(int(5 / STEP_S), waiting=(12,), deferred=(10,))
    assert device.pacer.overdue is True


def test_time_that_a_deferred_row_was_held_back_before_is_kept() -> None:
    device = Device(SchedulingSettings(retention=0.99, prefill_deadline_s=10.0))
    device.decode(GRACE_S)
    device.share(int(8 / STEP_S), waiting=(10,))
    device.share(int(5 / STEP_S), waiting=(11,), deferred=(10,))
    device.share(int(2.2 / STEP_S), waiting=(10,))
    assert device.pacer.overdue


def test_costs_and_rates_are_of_late() -> None:
    device = Device(chunk_s=0.5)
    assert (device.pacer.chunk_cost_s, device.pacer.step_cost_s) == (0.0, 0.0)
    assert (device.pacer.prefill_tokens_s, device.pacer.decode_tokens_s) == (0.0, 0.0)
    device.decode(GRACE_S, rows=(1, 2, 3))
    device.share(1)
    assert device.pacer.chunk_cost_s == 0.5 and device.pacer.step_cost_s == pytest.approx(STEP_S)
    assert device.pacer.prefill_tokens_s == 200.0
    assert device.pacer.decode_tokens_s == pytest.approx(3 / STEP_S)
