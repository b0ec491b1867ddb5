"""Every request that needs a larger grant is served or denied in the end, whoever else needs one."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.residency import messages as m
from gateway.residency.queue import Claim
from gateway.residency.resident import ResidencyManager
from gateway.residency.states import State

from .helpers_core import GIB, World, model
from .helpers_oracle import Oracle

STATIC, GRANT, BUDGET = 1000, 500, 5000
IDS = ("a", "b", "c")


@dataclass
class Engine:
    """A worker that obeys its grant: it begins what fits, one at a time, and asks for the first that does not."""

    grant: int
    waiting: list[tuple[int, int]] = field(default_factory=list)  # waiter and the bytes it needs
    running: tuple[int, int] | None = None
    left: int = 0  # seconds
    asked: tuple[int, int] | None = None


class Bench:
    """The world, and a worker for each model that does what the core says at once."""

    def __init__(self, needs: dict[int, tuple[str, int, int]]) -> None:
        infos = (model(id, STATIC / GIB, kv_grant=GRANT, fairness_wait_s=5, queue_timeout_s=1e6) for id in IDS)
        self.world = World(*infos, budget=BUDGET)
        self.oracle = Oracle(BUDGET)
        self.needs = needs  # by waiter: model, bytes, seconds
        self.engines: dict[tuple[str, int], Engine] = {}
        self.done: dict[int, str] = {}

    def do(self, event: m.Event) -> None:
        todo = [event]
        while todo:
            event = todo.pop(0)
            effects = self.world.do(event)
            self.oracle.step(event, effects)
            for effect in effects:
                todo += self.obey(effect)
            assert self.world.charged == self.oracle.charged

    def obey(self, effect: m.Effect) -> list[m.Event]:
        match effect:
            case m.StartWorker():
                self.engines[effect.key, effect.generation] = Engine(effect.grant_bytes)
                return [m.WorkerReady(effect.key, effect.generation, STATIC)]
            case m.GrantLease():
                _, need, _ = self.needs[effect.waiter]
                self.engines[effect.key, effect.generation].waiting.append((effect.waiter, need))
            case m.SetGrant():
                self.engines[effect.key, effect.generation].grant = effect.grant_bytes
                self.engines[effect.key, effect.generation].asked = None
            case m.DenyGrowth():
                engine = self.engines[effect.key, effect.generation]
                engine.waiting = [entry for entry in engine.waiting if entry[0] != effect.request]
                engine.asked = None
                self.done[effect.request] = "denied"
                return [m.LeaseReleased(self.world.granted[effect.request].lease)]
            case m.SendClose() | m.KillWorker():
                if self.engines.pop((effect.key, effect.generation), None) is not None:
                    return [m.WorkerExited(effect.key, effect.generation)]
            case _:
                pass
        return []

    def second(self) -> None:
        """Each worker works for one."""
        self.world.now += 1
        self.do(m.Tick())
        for at in list(self.engines):
            engine = self.engines.get(at)
            if engine is None:
                continue
            if engine.running is not None:
                engine.left -= 1
                if engine.left <= 0:
                    waiter, engine.running = engine.running[0], None
                    self.done[waiter] = "served"
                    self.do(m.LeaseReleased(self.world.granted[waiter].lease))
            if at in self.engines:
                self.begin(at, engine)

    def begin(self, at: tuple[str, int], engine: Engine) -> None:
        fits = next((entry for entry in engine.waiting if entry[1] <= engine.grant), None)
        if engine.running is None and fits is not None:
            engine.waiting.remove(fits)
            engine.running, engine.left = fits, self.needs[fits[0]][2]
            self.do(m.LeaseAdmitted(self.world.granted[fits[0]].lease))
        used = 0 if engine.running is None else engine.running[1]
        self.do(m.MemoryReport(*at, STATIC, used))
        lacks = next(((waiter, need - engine.grant) for waiter, need in engine.waiting if need > engine.grant), None)
        if at in self.engines and lacks != engine.asked:
            waiter, missing = lacks or (0, 0)
            engine.asked = lacks
            self.do(m.GrowRequest(*at, missing, waiter))


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(IDS),
        st.sampled_from(
            [100, 500, 501, 1500, 2000, 3000, 3900, 4000, 4001]
        ),  # bytes of KV; 4000 is the most there can be
        st.integers(1, 8),  # seconds it takes
        st.integers(0, 12),  # and after which it comes
    ),
    min_size=2,
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(requests=REQUESTS)
def test_growth_never_waits_for_ever(requests: list[tuple[str, int, int, int]]) -> None:
    needs = {waiter: (id, need, seconds) for waiter, (id, need, seconds, _) in enumerate(requests, start=1)}
    bench = Bench(needs)
    for now in range(400):
        for waiter, (id, _, _, at) in enumerate(requests, start=1):
            if at == now:
                bench.do(m.Request(waiter, id))
        bench.second()
        if len(bench.done) == len(requests):
            break
    assert bench.done == {waiter: "denied" if need > 4000 else "served" for waiter, (_, need, _) in needs.items()}
    assert not bench.world.house.leases and all(bench.world.state(id) in (State.LOADED, State.UNLOADED) for id in IDS)


def test_growth_of_rivals_takes_the_way_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case above is not idle: two requests that need most of the budget each make one model give way."""
    ways = []
    original = ResidencyManager.make_way

    def make_way(self: ResidencyManager, claim: Claim) -> None:
        ways.append(self.key)
        original(self, claim)

    monkeypatch.setattr(ResidencyManager, "make_way", make_way)
    bench = Bench({1: ("a", 3000, 2), 2: ("b", 3000, 2)})
    bench.do(m.Request(1, "a"))
    bench.do(m.Request(2, "b"))
    for _ in range(60):
        bench.second()
    assert bench.done == {1: "served", 2: "served"} and ways == ["b"]
