"""Nobody starves: with workers that obey and leases that end, every caller that fits is served, and soon enough."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import chain, count, pairwise, repeat
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.wire import Priority
from gateway.residency import messages as m
from gateway.residency.place import LAG_S

from .helpers_core import World, model

SIZES = {"a": 3.0, "b": 4.0, "c": 6.0, "d": 9.0, "e": 2.0}
ALONE = "alone"  # fits beside no other
LOAD_S, TEARDOWN_S, LEASE_S = 2.0, 1.0, 8.0
FAIRNESS_S = 10.0


class Simulation:
    """Callers arrive at set times and keep their leases for a set time; workers take a set time for everything."""

    def __init__(self, calls: Sequence[tuple[float, str, float]], priorities: Sequence[Priority] = ()) -> None:
        models = [model(id, gib, queue_timeout_s=1e6, queue_limit=10**4) for id, gib in {**SIZES, ALONE: 9.5}.items()]
        self.world = World(*models)
        self.order = count()
        self.agenda: list[tuple[float, int, str, object]] = []
        self.durations: dict[int, float] = {}
        self.asked: dict[int, float] = {}
        self.waits: dict[int, float] = {}
        at = self.world.now
        ranks = chain(priorities, repeat("normal"))
        for (gap, id, duration), priority in zip(calls, ranks, strict=False):
            at += gap
            self.plan(at, "call", (id, duration, priority))

    def plan(self, at: float, what: str, details: object) -> None:
        heapq.heappush(self.agenda, (at, next(self.order), what, details))

    def run(self) -> None:
        world = self.world
        while self.agenda:
            at, _, what, details = heapq.heappop(self.agenda)
            while world.due is not None and world.due <= at:
                world.now = max(world.now, world.due)
                self.see(world.do(m.Tick()))
            world.now = at
            self.see(self.act(what, details))

    def act(self, what: str, details: object) -> list[m.Effect]:
        world = self.world
        match what, details:
            case "call", (str(id), float(duration), "interactive" | "normal" | "batch" as priority):
                waiter = next(self.order)
                self.durations[waiter], self.asked[waiter] = duration, world.now
                return world.do(m.Request(waiter, id, priority=priority))
            case "ready", m.StartWorker(key=key, generation=generation):
                return world.do(m.WorkerReady(key, generation, world.resident(key).current.static_estimate, width=4))
            case "exit", (str(key), int(generation)):
                return world.do(m.WorkerExited(key, generation))
            case "release", str(lease):
                return world.do(m.LeaseReleased(lease))
            case _:
                raise AssertionError(what)

    def see(self, effects: list[m.Effect]) -> None:
        now = self.world.now
        for effect in effects:
            match effect:
                case m.StartWorker():
                    self.plan(now + LOAD_S, "ready", effect)
                case m.SendClose() | m.KillWorker():
                    self.plan(now + TEARDOWN_S, "exit", (effect.key, effect.generation))
                case m.GrantLease():
                    self.waits[effect.waiter] = now - self.asked[effect.waiter]
                    self.plan(now + self.durations[effect.waiter], "release", effect.lease)
                case m.FailWaiter():
                    raise AssertionError(f"{effect.error} after {now - self.asked[effect.waiter]} s")
                case _:
                    pass


CALLS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.1, 1.0, 5.0]), st.sampled_from(sorted(SIZES)), st.sampled_from([0.1, 2.0, LEASE_S])
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(CALLS)
def test_everybody_who_fits_is_served_within_a_turn_of_each_model(calls: list[tuple[float, str, float]]) -> None:
    simulation = Simulation(calls)
    simulation.run()
    assert simulation.waits.keys() == simulation.asked.keys()
    # A turn of one model: its rivals' fairness wait, drains as long as their leases, teardowns, and the load under way.
    turn = FAIRNESS_S + LEASE_S + TEARDOWN_S + 2 * LOAD_S
    assert max(simulation.waits.values()) <= len(SIZES) * turn
    assert simulation.world.charged <= simulation.world.house.budget.total_bytes
    assert not simulation.world.house.leases and not simulation.world.house.waiters


def test_steady_traffic_on_one_model_does_not_starve_another() -> None:
    steady = [(0.5, "d", 2.0)] * 400
    calls = [*steady[:100], (0.0, "c", 1.0), *steady[100:300], (0.0, "c", 1.0), *steady[300:]]
    simulation = Simulation(calls)
    simulation.run()
    rival = [wait for waiter, wait in simulation.waits.items() if simulation.durations[waiter] == 1.0]
    assert len(rival) == 2
    assert max(rival) <= FAIRNESS_S + 2.0 + TEARDOWN_S + LOAD_S + 0.5
    waits = sorted(wait for waiter, wait in simulation.waits.items() if simulation.durations[waiter] == 2.0)
    assert waits[len(waits) // 2] == 0.0


@settings(max_examples=40, deadline=None, derandomize=True)
@given(CALLS, st.lists(st.sampled_from(get_args(Priority)), max_size=60))
def test_no_priority_keeps_anybody_waiting_for_ever(
    calls: list[tuple[float, str, float]], priorities: list[Priority]
) -> None:
    simulation = Simulation(calls, priorities)
    simulation.run()
    assert simulation.waits.keys() == simulation.asked.keys()
    turn = FAIRNESS_S + LEASE_S + TEARDOWN_S + 2 * LOAD_S
    assert max(simulation.waits.values()) <= max(LAG_S.values()) + len(SIZES) * turn


def test_batch_is_served_beside_interactive_traffic_that_never_ends() -> None:
    """Two models take turns for interactive callers, who leave no gap; a third fits beside neither."""
    calls: list[tuple[float, str, float]] = [(0.25, id, 1.0) for _ in range(400) for id in ("c", "d")]
    priorities: list[Priority] = ["interactive"] * len(calls)
    calls.insert(100, (0.0, ALONE, 3.0))
    priorities.insert(100, "batch")
    simulation = Simulation(calls, priorities)
    simulation.run()
    (batch,) = [wait for waiter, wait in simulation.waits.items() if simulation.durations[waiter] == 3.0]
    turn = FAIRNESS_S + 1.0 + TEARDOWN_S + LOAD_S
    assert LAG_S["batch"] / 2 < batch <= LAG_S["batch"] + 2 * turn


def test_two_models_that_exclude_each_other_alternate() -> None:
    calls = [(0.25, id, 1.0) for _ in range(100) for id in ("c", "d")]
    simulation = Simulation(calls)
    simulation.run()
    loads = [effect.key for effect in simulation.world.logged(m.StartWorker)]
    assert all(first != second for first, second in pairwise(loads))
    assert len(simulation.waits) == 200
