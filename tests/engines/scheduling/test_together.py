"""All policies together, on a modelled device with a clock of its own."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.scheduling.admission import KvCost
from engines.scheduling.governor import DWELL_S, SHEDS_A_MINUTE, Action
from engines.scheduling.settings import SchedulingSettings
from engines.scheduling.waiting import HANDICAP_S, PRIORITIES, Priority
from tests.engines.scheduling.helpers_simulator import Device, Request, Simulator

BANDS = ("green", "yellow", "orange", "red")


def lost_s(simulator: Simulator, ratio: float, most_held_back: float = math.inf) -> float:
    """The most that rows which are protected ever lost beyond their share, over any window: seconds of prefill.

    Windows end where more prompts than ``most_held_back`` wait for pacing.
    """
    worst = lost = 0.0
    for tick in simulator.ticks:
        if not tick.protected or tick.held_back > most_held_back:
            lost = 0.0
        elif tick.kind == "prefill":
            lost += tick.seconds
        else:
            lost = max(0.0, lost - tick.seconds / ratio)
        worst = max(worst, lost)
    return worst


def check(simulator: Simulator) -> None:
    """What always holds."""
    rows = simulator.rows.values()
    assert all(row.outcome is not None for row in rows)
    for row in rows:
        if row.outcome == "finished":
            assert row.said == row.request.answer
        if row.outcome == "refused":
            assert row.began_s is None or row.preempted
    if simulator.grant is not None:
        assert simulator.peak <= simulator.grant
    for (entered, band), (left, later) in pairwise(simulator.bands):
        assert BANDS.index(later) >= BANDS.index(band) or left - entered >= DWELL_S
    sheds = [at for at, action, _ in simulator.reliefs if action in (Action.SHED, Action.PREEMPT)]
    assert all(sum(at - 60 < other <= at for other in sheds) <= SHEDS_A_MINUTE for at in sheds)
    failed = [row_id for _, action, row_id in [*simulator.reliefs, *simulator.recoveries] if action is Action.FAIL]
    assert len(failed) == len(set(failed))
    longest = max((tick.seconds for tick in simulator.ticks if tick.kind == "prefill"), default=0.0)
    retention = simulator.settings.retention
    assert lost_s(simulator, retention / (1 - retention), most_held_back=1) <= 2 * longest + 1e-6  # beside one prompt
    assert lost_s(simulator, 0.5) <= 2 * longest + 1e-6  # beside any number of them


def workload(seed: int, count: int, spread_s: float) -> list[Request]:
    """Prompts and answers of all lengths; half of the answers may grow past what is projected of them; some clients leave."""
    draw = random.Random(seed)
    return [
        Request(
            at_s=draw.uniform(0, spread_s),
            prompt=draw.choice([draw.randint(1, 300), draw.randint(300, 2500)]),
            answer=(answer := draw.choice([draw.randint(1, 40), draw.randint(200, 600)])),
            max_tokens=answer + draw.choice([0, 0, 300]),
            expected=draw.choice([None, draw.randint(1, 100)]),
            priority=draw.choice(PRIORITIES),
            cancel_s=draw.choice([None, None, None, draw.uniform(0, 60)]),
        )
        for _ in range(count)
    ]


devices = st.builds(
    Device,
    chunk_fixed_s=st.floats(0.001, 0.1),
    chunk_token_s=st.floats(0.0001, 0.004),
    step_fixed_s=st.floats(0.01, 0.1),
    step_row_s=st.floats(0, 0.01),
    noise=st.sampled_from([0.0, 0.1, 0.4]),
    kv_factor=st.sampled_from([0.5, 1.0, 1.0, 1.3]),
)

costs = st.sampled_from(
    [
        KvCost(20, layer_bytes_per_token=2),
        KvCost(20, layer_bytes_per_token=2),
        KvCost(4, 16, 512, layer_bytes_per_token=1),
        KvCost(10, state_bytes=2560, layer_bytes_per_token=3),
    ]
)


@settings(max_examples=60)
@given(
    device=devices,
    count=st.integers(6, 14),
    spread_s=st.sampled_from([0.0, 5.0, 30.0]),
    cost=costs,
    room=st.sampled_from([None, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0]),
    width=st.sampled_from([1, 2, 4, 8, 8]),
    ceiling_s=st.sampled_from([1.0, 30.0]),
    pass_bytes=st.one_of(st.none(), st.integers(0, 40_000)),
    seed=st.integers(1, 10**6),
)
def test_every_row_ends_within_the_grant_and_runs_keep_their_speed(
    device: Device,
    count: int,
    spread_s: float,
    cost: KvCost,
    room: float | None,
    width: int,
    ceiling_s: float,
    pass_bytes: int | None,
    seed: int,
) -> None:
    """``room``: the grant, by what the largest of the requests takes."""
    requests = workload(seed, count, spread_s)
    largest = max(cost.row_bytes(request.prompt + request.max_tokens) for request in requests)
    grant = None if room is None else int(room * largest)
    knobs = SchedulingSettings(defer_ceiling_s=ceiling_s)
    simulator = Simulator(device, requests, grant, width, cost, pass_bytes, knobs, seed).run()
    check(simulator)
    longest = simulator.admission.longest_row
    for row in simulator.rows.values():
        if device.kv_factor <= 1 and (longest is None or row.end < longest):
            assert row.outcome in ("finished", "cancelled")


@pytest.mark.parametrize(
    "device",
    [
        Device(),
        Device(chunk_fixed_s=0.03, chunk_token_s=0.005, step_fixed_s=0.04),
        Device(chunk_fixed_s=0.01, chunk_token_s=0.0001, step_fixed_s=0.008, noise=0.3),
    ],
)
def test_a_running_stream_keeps_four_fifths_while_a_long_prompt_enters(device: Device) -> None:
    stream, long = Request(answer=4000, max_tokens=4000), Request(at_s=5.0, prompt=4096, answer=1, max_tokens=1)
    simulator = Simulator(device, [stream, long]).run()
    ticks = [tick for tick in simulator.ticks if tick.protected]
    entering = ticks[: max(i for i, tick in enumerate(ticks) if tick.kind == "prefill") + 1]
    chunks = [tick.seconds for tick in entering if tick.kind == "prefill"]
    decoded = sum(tick.seconds for tick in entering if tick.kind == "decode")
    assert len(chunks) >= 3
    assert decoded >= 4 * sum(chunks[:-1]) * 0.999


def test_a_lone_prompt_is_read_as_fast_as_without_pacing() -> None:
    (row,) = Simulator(Device(), [Request(prompt=4096)]).run().rows.values()
    (unpaced,) = (
        Simulator(Device(), [Request(prompt=4096)], settings=SchedulingSettings(prefill_ratio=0.0)).run().rows.values()
    )
    assert row.first_s == unpaced.first_s == pytest.approx(row.read_s + 0.021)
    assert row.paced_s == 0.0


def test_prompts_that_keep_coming_are_not_read_one_at_a_time() -> None:
    """Sixteen clients with long prompts: a batch that never filled would serve them all more slowly."""
    device = Device(chunk_token_s=0.005, step_row_s=0.01)
    requests = [Request(at_s=i * 2.0, prompt=500, answer=130, max_tokens=130) for i in range(30)]
    paced = Simulator(device, requests, width=16).run()
    check(paced)
    strict = Simulator(device, requests, width=16, settings=SchedulingSettings(prefill_ratio=4.0)).run()
    free = Simulator(device, requests, width=16, settings=SchedulingSettings(prefill_ratio=0.0)).run()
    assert paced.now < 1.2 * free.now and paced.now < 0.85 * strict.now


def test_prompts_that_come_together_are_read_together() -> None:
    """Pacing for each other they would take five times as long."""
    burst = Simulator(Device(), [Request(prompt=200, answer=200, max_tokens=200)] * 6).run()
    reading = sum(row.read_s for row in burst.rows.values())
    assert max(row.first_s or 0.0 for row in burst.rows.values()) < 1.5 * reading


def test_a_prompt_waits_for_pacing_no_longer_than_its_deadline_and_then_as_long_as_it_is_read() -> None:
    device = Device(chunk_token_s=0.01, noise=0.2)
    requests = [Request(answer=9000, max_tokens=9000), Request(at_s=5.0, prompt=4096, answer=1, max_tokens=1)]
    knobs = SchedulingSettings(retention=0.9, prefill_deadline_s=20.0)
    long = Simulator(device, requests, settings=knobs, seed=3).run().rows[1]
    assert 20.0 <= long.paced_s <= 20.0 + 9 * 1.0 + long.read_s


def test_waits_for_memory_hasten_no_prompt() -> None:
    """The third row waits for the first two for longer than the deadline; pacing has not held it back."""
    requests = [
        Request(answer=4000, max_tokens=4000),
        Request(at_s=1.0, prompt=300, answer=3000, max_tokens=3000),
        Request(at_s=2.0, prompt=4000, answer=1, max_tokens=1),
    ]
    simulator = Simulator(
        Device(),
        requests,
        grant=2 * 4352 * 10 + 9000,
        cost=KvCost(10),
        settings=SchedulingSettings(defer_ceiling_s=1000.0),
    )
    simulator.run()
    check(simulator)
    assert (simulator.rows[2].began_s or 0.0) > 62.0
    assert any(tick.protected and tick.kind == "prefill" for tick in simulator.ticks[2500:])


@pytest.mark.parametrize("priority", ["normal", "batch"])
def test_no_class_starves_under_a_flood_of_interactive_rows(priority: Priority) -> None:
    """More of them come than the device can serve, for longer than the handicap."""
    flood = [Request(at_s=i * 0.5, prompt=300, answer=20, max_tokens=20, priority="interactive") for i in range(400)]
    simulator = Simulator(Device(), [Request(at_s=5.0, priority=priority), *flood], width=2).run()
    row = simulator.rows[0]
    before = [other for other in simulator.rows.values() if (other.began_s or 0.0) < (row.began_s or 0.0)]
    assert all(other.request.at_s <= 5.0 + HANDICAP_S[priority] for other in before)
    assert len(before) < 400
    assert (row.ended_s or 0.0) < max(other.ended_s or 0.0 for other in simulator.rows.values())


def test_past_the_ceiling_a_deferred_row_begins_by_what_is_held() -> None:
    """Answers that may come to 4000 tokens and come to few: what they hold leaves room."""
    requests = [Request(at_s=i, prompt=100, answer=600, max_tokens=4000) for i in range(3)]
    cost = KvCost(10)
    patient = Simulator(
        Device(), requests, grant=5000 * 10, cost=cost, settings=SchedulingSettings(defer_ceiling_s=1e6)
    ).run()
    eager = Simulator(
        Device(), requests, grant=5000 * 10, cost=cost, settings=SchedulingSettings(defer_ceiling_s=5.0)
    ).run()
    for simulator in (patient, eager):
        check(simulator)
    assert patient.overdue_starts == 0 and eager.overdue_starts == 2
    assert (eager.rows[2].ended_s or 0.0) < 0.7 * (patient.rows[2].ended_s or 0.0)


@settings(max_examples=25)
@given(
    device=devices,
    count=st.integers(4, 10),
    floor=st.floats(0.0, 2.0),
    fall_s=st.floats(0.0, 60.0),
    back_s=st.sampled_from([60.0, 1e9]),
    seed=st.integers(1, 10**6),
)
def test_a_device_that_others_take_ends_nothing_twice_and_everything_ends(
    device: Device, count: int, floor: float, fall_s: float, back_s: float, seed: int
) -> None:
    """``floor``: what is left at the end of the fall, by what the largest request takes."""
    requests = workload(seed, count, 10.0)
    cost = KvCost(20, layer_bytes_per_token=2)
    largest = max(cost.row_bytes(request.prompt + request.max_tokens) for request in requests)

    def total_bytes(now: float) -> int:
        fallen = min(1.0, now / fall_s) if fall_s > 0 else 1.0
        return 4 * largest if now > back_s else int((4 - (4 - floor) * fallen) * largest)

    simulator = Simulator(replace(device, total_bytes=total_bytes), requests, 4 * largest, 8, cost, seed=seed).run()
    check(simulator)
    if floor >= 1.5 and device.kv_factor <= 1.0:
        assert not any(row.outcome == "failed" for row in simulator.rows.values())


@settings(max_examples=25)
@given(
    device=devices,
    count=st.integers(1, 10),
    errors=st.frozensets(st.integers(1, 800), max_size=6),
    seed=st.integers(1, 10**6),
)
def test_memory_errors_end_at_most_a_row_each(device: Device, count: int, errors: frozenset[int], seed: int) -> None:
    simulator = Simulator(replace(device, memory_errors=errors), workload(seed, count, 5.0), seed=seed).run()
    check(simulator)
    failed = sum(row.outcome == "failed" for row in simulator.rows.values())
    assert failed <= len(errors) // 2  # the first error of a row sets it back
