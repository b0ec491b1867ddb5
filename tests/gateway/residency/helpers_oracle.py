"""A second opinion on the residency core: it sees only events and effects, and counts bytes and leases."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.residency import messages as m

__all__ = ["Oracle"]


@dataclass
class _Worker:
    estimate: int  # static
    static: int
    grant: int
    used: int = 0
    ready: bool = False
    exited: bool = False
    held: int | None = None

    @property
    def charge(self) -> int:
        charge = self.static + max(self.grant, self.used)
        return charge if self.held is None else min(charge, self.held)


class Oracle:
    """Fed with each step after it was taken. Assumes simulated models (no baseline)."""

    def __init__(self, budget: int) -> None:
        self.budget = self.total = budget
        self.workers: dict[tuple[str, int], _Worker] = {}
        self.leases: dict[str, tuple[int, tuple[str, int]]] = {}  # lease → waiter, worker
        self.waiting: set[int] = set()
        self.dead: set[int] = set()  # waiters that are settled for ever
        self.frozen: set[tuple[str, int]] = set()  # told to end: reports count no more

    @property
    def charged(self) -> int:
        return sum(worker.charge for worker in self.workers.values())

    def step(self, event: m.Event, effects: list[m.Effect]) -> None:
        self._take(event)
        for effect in effects:
            self._see(effect)

    def grant(self, effect: m.GrantLease) -> None:
        """Also for ``acquire_nowait``."""
        worker = self.workers[effect.key, effect.generation]
        assert worker.ready and not worker.exited, "a lease on a worker that does not answer"
        assert (effect.key, effect.generation) not in self.frozen, "a lease on a worker that was told to end"
        assert self.charged <= self.total, f"granted with {self.charged} of {self.total} charged"
        assert effect.waiter not in self.dead and effect.lease not in self.leases
        self.waiting.discard(effect.waiter)
        self.leases[effect.lease] = effect.waiter, (effect.key, effect.generation)

    def _take(self, event: m.Event) -> None:
        match event:
            case m.Request():
                self.waiting.add(event.waiter)
            case m.CancelWaiter():
                self.waiting.discard(event.waiter)
                self.dead.add(event.waiter)
                self.leases = {id: held for id, held in self.leases.items() if held[0] != event.waiter}
            case m.LeaseReleased():
                self.leases.pop(event.lease, None)
            case m.OverheadMeasured():
                self.total = self.budget - event.overhead_bytes
            case m.WorkerReady() | m.MemoryReport():
                self._measure(event)
            case m.WorkerExited() | m.ReleaseObserved():
                self._exit(event)
            case _:
                pass

    def _measure(self, event: m.WorkerReady | m.MemoryReport) -> None:
        at = event.key, event.generation
        worker = self.workers.get(at)
        if worker is None or at in self.frozen or worker.exited:
            return
        if isinstance(event, m.WorkerReady):
            if not worker.ready:
                worker.ready = True
                worker.static = max(worker.estimate, event.static_bytes)
        elif worker.ready:
            worker.static = max(worker.estimate, event.static)
            worker.used = event.kv + event.prompt_cache + event.mlx_cache

    def _exit(self, event: m.WorkerExited | m.ReleaseObserved) -> None:
        worker = self.workers.get((event.key, event.generation))
        if worker is None or (isinstance(event, m.ReleaseObserved) and not worker.exited):
            return
        worker.exited = True
        worker.held = min(worker.charge, event.held_bytes)
        if not event.held_bytes:
            del self.workers[event.key, event.generation]

    def _see(self, effect: m.Effect) -> None:
        match effect:
            case m.StartWorker():
                static = effect.charged_bytes - effect.grant_bytes
                self.workers[effect.key, effect.generation] = _Worker(static, static, effect.grant_bytes)
                assert self.charged <= self.total, f"started with {self.charged} of {self.total} charged"
            case m.SetGrant():
                self.workers[effect.key, effect.generation].grant = effect.grant_bytes
            case m.SendClose() | m.KillWorker():
                at = effect.key, effect.generation
                self.frozen.add(at)
                users = [id for id, (_, worker) in self.leases.items() if worker == at]
                assert not users, f"{at} was told to end while {users} use it"
            case m.GrantLease():
                self.grant(effect)
            case m.FailWaiter():
                assert effect.waiter in self.waiting, "an error for nobody"
                self.waiting.discard(effect.waiter)
                self.dead.add(effect.waiter)
            case m.RequeueLease():
                waiter, _ = self.leases.pop(effect.lease)
                assert waiter == effect.waiter
                self.waiting.add(waiter)
            case m.EndLease():
                waiter, _ = self.leases.pop(effect.lease)
                self.dead.add(waiter)
            case _:
                pass
