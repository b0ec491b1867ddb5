"""The residency core under random events: every invariant after each step, a second opinion on bytes and leases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engines.wire import Priority
from gateway.errors import GatewayError
from gateway.registry.schema import Policy
from gateway.residency import messages as m
from gateway.residency.states import State

from .helpers_core import World, model
from .helpers_oracle import Oracle

BUDGET = 100
PRIORITIES: tuple[Priority, ...] = get_args(Priority)
IDS = ("a", "b", "c", "d", "e")
SIZES = {"a": 30, "a2": 30, "b": 45, "c": 60, "d": 25, "e": 110, "b'": 50}
SHORT = Policy(
    ttl_s=100,
    queue_timeout_s=60,
    load_timeout_s=50,
    abandon_grace_s=10,
    fairness_wait_s=10,
    drain_timeout_s=30,
)


def entry(id: str, key: str, policy: Policy) -> m.ModelInfo:
    kv = {"d": 1, "b": 1}.get(id, 0)
    size = SIZES[key] - (kv and 5)
    info = model(id, 0, key=key, kv_per_token=0)
    footprint = replace(info.footprint, static_bytes=size)
    grant = 5 if kv else None
    return replace(info, footprint=footprint, kv_grant_bytes=grant, policy=policy)


REGISTRY = {id: entry(id, "a" if id == "a2" else id, SHORT) for id in (*IDS, "a2")}
INDEX = st.integers(0, 1000)


class Residency(RuleBasedStateMachine):
    """Workers do as they are told at their own pace; callers come, go and stay; operators do what they like."""

    @initialize(policy=st.sampled_from(["lru", "largest", "priority"]))
    def begin(self, policy: str) -> None:
        self.world = World(budget=BUDGET, policy=policy)
        self.oracle = Oracle(BUDGET)
        self.registry = dict(REGISTRY)
        self.asked = 0
        self.waiters: list[int] = []  # not cancelled by us, not failed
        self.leases: list[str] = []
        self.told: dict[tuple[str, int], bool] = {}  # live workers; True: to end
        self.held: list[tuple[str, int]] = []
        self.admins: set[int] = set()
        self.down = False
        self.do(m.RegistryChanged(tuple(self.registry.values())))

    def do(self, event: m.Event) -> None:
        effects = self.world.do(event)
        self.oracle.step(event, effects)
        for effect in effects:
            self.see(effect)
        assert self.oracle.charged == self.world.charged, f"{self.oracle.charged} counted, {self.world.charged} charged"
        assert set(self.oracle.leases) == set(self.world.house.leases)
        assert self.oracle.waiting == {w.id for w in self.world.house.waiters.values() if w.lease is None}

    def see(self, effect: m.Effect) -> None:
        match effect:
            case m.GrantLease():
                self.leases.append(effect.lease)
            case m.StartWorker():
                self.told[effect.key, effect.generation] = False
            case m.SendClose() | m.KillWorker():
                self.told[effect.key, effect.generation] = True
            case m.AnswerAdmin():
                self.admins.remove(effect.admin)
            case m.ShutdownComplete():
                self.down = True
            case _:
                pass

    def ask(self, verb: Any, *details: Any) -> None:
        self.asked += 1
        self.admins.add(self.asked)
        self.do(verb(self.asked, *details))

    # --- callers

    @rule(id=st.sampled_from([*IDS, "a2", "nobody"]), nowait=st.booleans(), priority=st.sampled_from(PRIORITIES))
    def request(self, id: str, nowait: bool, priority: Priority = "normal") -> None:
        self.asked += 1
        self.waiters.append(self.asked)
        if nowait:
            grant = self.world.manager.acquire_nowait(self.asked, id, "client", "route", self.world.now, priority)
            self.world.manager.check_integrity()
            if grant is not None:
                self.oracle.grant(grant)
                self.leases.append(grant.lease)
                return
        self.do(m.Request(self.asked, id, priority=priority))

    @rule(id=st.sampled_from(["a", "b", "c", "d"]), begun=st.booleans())
    def serve(self, id: str, begun: bool) -> None:
        """A caller whose load, if it takes one, ends well; sometimes its request begins."""
        self.request(id, nowait=False)
        for key, generation in self.building():
            self.do(m.WorkerReady(key, generation, SIZES[key] - 5, width=2))
        if begun and self.leases:
            self.do(m.LeaseAdmitted(self.leases[-1]))

    def building(self) -> list[tuple[str, int]]:
        residents = self.world.house.residents.values()
        return [(r.key, r.generation) for r in residents if r.state is State.LOADING]

    @precondition(lambda self: self.waiters)
    @rule(index=INDEX)
    def cancel(self, index: int) -> None:
        self.do(m.CancelWaiter(self.waiters.pop(index % len(self.waiters))))

    @precondition(lambda self: self.leases)
    @rule(index=INDEX)
    def release(self, index: int) -> None:
        self.do(m.LeaseReleased(self.leases.pop(index % len(self.leases))))

    @precondition(lambda self: self.leases)
    @rule(index=INDEX)
    def admit(self, index: int) -> None:
        self.do(m.LeaseAdmitted(self.leases[index % len(self.leases)]))

    @rule(id=st.sampled_from(IDS), seconds=st.sampled_from([-1.0, 0.0, 5.0, 300.0]))
    def keep_alive(self, id: str, seconds: float) -> None:
        self.do(m.KeepAlive(id, seconds))

    # --- time

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.9, 10.0, 10.0, 10.0, 31.0, 61.0]))
    def pass_time(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        end = self.world.now + seconds
        while self.world.due is not None and self.world.due <= end:
            self.world.now = max(self.world.now, self.world.due)
            self.do(m.Tick())
            assert self.world.due is None or self.world.due > self.world.now
        self.world.now = end
        self.do(m.Tick())

    # --- workers

    def pick(self, index: int) -> tuple[str, int]:
        return sorted(self.told)[index % len(self.told)]

    @precondition(lambda self: self.building())
    @rule(percent=st.sampled_from([80, 100, 100, 100, 120]))
    def ready(self, percent: int) -> None:
        for key, generation in self.building():
            self.do(m.WorkerReady(key, generation, SIZES[key] * percent // 100, width=2))

    @precondition(lambda self: any(self.told.values()))
    @rule()
    def obey(self) -> None:
        for at in [at for at, end in self.told.items() if end]:
            del self.told[at]
            self.do(m.WorkerExited(*at))

    @precondition(lambda self: self.told)
    @rule(
        index=INDEX,
        what=st.sampled_from(["progress", "ready", "failed", "exit", "exit and hold", "report", "grow", "started"]),
        number=st.integers(0, 60),
    )
    def worker(self, index: int, what: str, number: int) -> None:
        """Anything a worker may say, at any time."""
        at = self.pick(index)
        key, _ = at
        match what:
            case "progress":
                self.do(m.LoadProgress(*at, 0.5))
            case "started":
                self.do(m.WorkerStarted(*at, 4711))
            case "ready":
                self.do(m.WorkerReady(*at, SIZES[key]))
            case "failed" if number < 30:
                self.do(m.LoadFailed(*at, GatewayError("broken")))
            case "exit" | "exit and hold":
                held = 7 if what == "exit and hold" else 0
                del self.told[at]
                self.do(m.WorkerExited(*at, "exit 1", held))
                if held:
                    self.held.append(at)
            case "report":
                self.do(m.MemoryReport(*at, SIZES[key] - 5 + number // 10, number // 6, number % 7))
            case "grow":
                self.do(m.GrowRequest(*at, max(0, number - 5), 1))  # 0 takes it back
            case _:
                pass

    @precondition(lambda self: self.held)
    @rule(index=INDEX)
    def release_bytes(self, index: int) -> None:
        self.do(m.ReleaseObserved(*self.held.pop(index % len(self.held))))

    # --- operators

    @rule(
        id=st.sampled_from([*IDS, "a2", "nobody"]),
        verb=st.sampled_from(["load", "drain", "abort", "force", "pin", "unpin", "unpin", "overhead"]),
        deadline=st.sampled_from([0.0, 5.0, 30.0]),
    )
    def operate(self, id: str, verb: str, deadline: float) -> None:
        match verb:
            case "load":
                self.ask(m.AdminLoad, id)
            case "drain" | "abort" | "force":
                self.ask(m.AdminUnload, id, verb, deadline)
            case "pin":
                self.ask(m.Pin, id)
            case "unpin":
                self.ask(m.Unpin, id)
            case _:
                self.do(m.OverheadMeasured(int(deadline / 5)))

    @rule(
        id=st.sampled_from([*IDS, "a2"]),
        key=st.sampled_from([None, "own", "own", "b'"]),
        preload=st.booleans(),
        pin=st.booleans(),
    )
    def reload(self, id: str, key: str | None, preload: bool, pin: bool) -> None:
        """An id leaves the registry, comes back, or changes its load keys or its policy."""
        if key is None:
            self.registry.pop(id, None)
        else:
            policy = Policy(
                ttl_s=50, preload=preload, pin=pin, queue_timeout_s=60, load_timeout_s=50, drain_timeout_s=30
            )
            own = "a" if id == "a2" else id
            self.registry[id] = entry(id, own if key == "own" else key, policy)
        self.do(m.RegistryChanged(tuple(self.registry.values())))

    @rule(grace=st.sampled_from([4.0, 30.0]), luck=st.integers(0, 19))
    def shut_down(self, grace: float, luck: int) -> None:
        if luck == 19:
            self.do(m.Shutdown(grace))

    # --- always

    @invariant()
    def identities(self) -> None:
        if not hasattr(self, "world"):
            return
        statistics = self.world.manager.statistics(self.world.now)
        assert sum(row.charged_bytes for row in statistics.models) == statistics.budget.charged_bytes
        assert statistics.budget.charged_bytes + statistics.budget.available_bytes == statistics.budget.total_bytes
        waiting = any(queued.waiters for queued in self.world.house.queue)
        assert not waiting or self.world.due is not None, "callers wait, and nothing is due"

    def teardown(self) -> None:
        """Everybody leaves and workers obey: nothing is left but what is loaded; then a shutdown leaves nothing at all."""
        if not hasattr(self, "world"):
            return
        for waiter in self.waiters:
            self.do(m.CancelWaiter(waiter))
        assert not self.oracle.leases and not self.world.house.leases and not self.world.house.waiters
        for _ in range(40):
            while self.held:
                self.do(m.ReleaseObserved(*self.held.pop()))
            for at, end in list(self.told.items()):
                if end:
                    del self.told[at]
                    self.do(m.WorkerExited(*at))
                else:
                    self.do(m.WorkerReady(*at, SIZES[at[0]] - 5))
            self.advance(20.0)
        assert not self.admins, f"admin verbs without an answer: {self.admins}"
        residents = self.world.house.residents.values()
        assert not len(self.world.house.queue) or all(entry.preload for entry in self.world.house.queue)
        assert self.world.charged == sum(r.charge for r in residents if r.state is State.LOADED)
        self.do(m.Shutdown(10.0))
        for at, end in list(self.told.items()):
            assert end, f"{at} was not told to end"
            self.do(m.WorkerExited(*at))
        assert self.down and self.world.charged == 0


TestResidency = Residency.TestCase
TestResidency.settings = settings(
    max_examples=250,
    derandomize=True,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
