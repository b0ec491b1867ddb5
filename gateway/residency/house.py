"""The state that the parts of the core share, and the few verbs all of them need.

One writer: ``ModelManager.handle``. The parts (``callers_desk``, ``admin``, ``registry_changes``, ``memory``, ``planner``,
``resident``) each change their share of it within one call and never keep a copy.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from engines.wire import Priority
from gateway.errors import GatewayError, ModelNotFound
from gateway.residency.budget import Budget
from gateway.residency.callers import LeaseRecord, Waiter
from gateway.residency.effects import AnswerAdmin, Effect, EmitTransition, FailWaiter
from gateway.residency.learned import LearnedValues
from gateway.residency.place import Place
from gateway.residency.queue import Claim, Entry, LoadQueue
from gateway.residency.states import State
from gateway.residency.timers import Timer, TimerKind, Timers
from gateway.residency.values import LearnedValue, LeaseId, ManagerSettings, ModelInfo, WaiterId

if TYPE_CHECKING:
    from gateway.residency.fairness import Intent
    from gateway.residency.resident import ResidencyManager

__all__ = ["House", "fresh"]

_E = TypeVar("_E", bound=GatewayError)


def fresh(error: _E) -> _E:
    """An equal error of its own for each caller, since a raised exception carries its traceback."""
    return copy.copy(error)


class House:
    """See the module. ``now`` and ``effects`` are of the event being handled."""

    def __init__(
        self,
        settings: ManagerSettings,
        learned: Mapping[str, LearnedValue] | None = None,
        device_free: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.device_free = device_free  # bytes really free; None: not known, or a rehearsal
        self.budget = Budget(settings.budget_bytes)
        self.timers = Timers()
        self.queue = LoadQueue()
        self.learned = LearnedValues(learned)
        self.baseline_bytes = 0  # of an empty worker of a real model, as last measured
        self.models: dict[str, ModelInfo] = {}  # by id, in the registry's order
        self.residents: dict[str, ResidencyManager] = {}  # by key: those with an id, and those not yet gone
        self.pins: dict[str, bool] = {}  # by id, what an operator said; the registry's pin rules where absent
        self.generations: dict[str, int] = {}  # by key, the last one; grows for ever
        self.workers: set[tuple[str, int]] = set()  # asked for and not seen to exit
        self.waiters: dict[WaiterId, Waiter] = {}
        self.leases: dict[LeaseId, LeaseRecord] = {}
        self.intents: dict[Claim, Intent] = {}  # by the rival
        self.unadmitted = 0  # leases whose request has not begun
        self.shutdown_at = math.inf  # when the grace is over; inf: not shutting down
        self.drain_until = math.inf  # leases run until then
        self.unload_until = math.inf  # whoever has not ended by then is killed
        self.counts: Counter[str] = Counter()  # what was counted and dropped
        self.now = 0.0
        self.effects: list[Effect] = []
        self._order = 0
        self._lease = 0

    # --- time and effects

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def count(self, what: str) -> None:
        """Something that changes nothing: an old generation's event, a release of no lease."""
        self.counts[what] += 1

    def announce(self, resident: ResidencyManager, was: State, cause: str) -> None:
        """A transition, or that a state goes on, for whoever watches."""
        charged = self.budget.of_key(resident.key)
        self.emit(EmitTransition(self.now, resident.name, was.value, resident.state.value, cause, charged))

    # --- numbers

    @property
    def shutting_down(self) -> bool:
        return self.shutdown_at < math.inf

    @property
    def open(self) -> bool:
        """Something may be granted: what is charged is within the budget."""
        return self.budget.available_bytes >= 0

    @property
    def callers_without_service(self) -> int:
        """Those without a lease, and those whose request has not begun: what the global limit counts."""
        return len(self.waiters) - len(self.leases) + self.unadmitted

    def next_order(self) -> int:
        self._order += 1
        return self._order

    def next_place(self, priority: Priority = "normal") -> Place:
        """Of somebody who comes now."""
        return Place.of(priority, self.now, self.next_order())

    def next_lease(self) -> LeaseId:
        self._lease += 1
        return f"lease-{self._lease}"

    # --- bytes

    def settle(self, key: str, generation: int, held_bytes: int) -> bool:
        """The process group of a generation is gone and the probe reports ``held_bytes``: credits the rest of its charge.

        True when nothing is charged any more. What frees is earmarked for whom it was evicted, else for the queue's head.
        """
        charge = self.budget.of(key, generation)
        if charge is None:
            return True
        if held_bytes > 0:
            freed = -self.budget.adjust(key, generation, min(charge, held_bytes))
        else:
            freed = self.budget.credit(key, generation)
        resident = self.residents.get(key)
        claim = resident.claim if resident is not None and resident.generation == generation else None
        if claim is not None and claim.kind == "grow":
            return held_bytes <= 0
        entry = (claim and self.queue.get(claim.key)) or (self.queue.head and self.queue.get(self.queue.head))
        if entry:
            entry.freed_bytes += freed
        return held_bytes <= 0

    # --- names

    def resident_of(self, model: str) -> ResidencyManager:
        return self.residents[self.models[model].resident_key]

    def before(self, resident: ResidencyManager) -> list[ResidencyManager]:
        """What its ids had before reloads, or before they were removed, and is not gone yet; the latest first."""
        leaving = [r for r in self.residents.values() if r.orphaned and r.state in (State.DRAINING, State.UNLOADING)]
        return [r for r in reversed(leaving) if any(info.id in resident.ids for info in r.infos)]

    def pinned_ids(self, resident: ResidencyManager) -> list[str]:
        """The ids by which it is pinned now."""
        return [id for id in resident.ids if self.pins.get(id, self.models[id].policy.pin)]

    def not_found(self, model: str) -> ModelNotFound:
        offer = f"the registry has: {', '.join(self.models)}" if self.models else "the registry is empty"
        return ModelNotFound(f"there is no model {model!r}; {offer}", param="model")

    def loading(self) -> ResidencyManager | None:
        """Whoever holds the load slot."""
        return next((r for r in self.residents.values() if r.state is State.LOADING), None)

    # --- callers

    def waits(self, claim: Claim) -> bool:
        """Callers in the queue, or a request under way, still need what this claim is for."""
        if claim.kind == "load":
            entry = self.queue.get(claim.key)
            return entry is not None and bool(entry.waiters)
        resident = self.residents.get(claim.key)
        return resident is not None and resident.current.growth is not None

    def enqueue(self, waiter: Waiter) -> None:
        """The caller waits in the queue from now on, for at most its queue timeout."""
        self.queue.add(waiter)
        timeout = self.models[waiter.model].policy.queue_timeout_s
        self.timers.set(Timer(TimerKind.WAITER, waiter.id), self.now + timeout)

    def dequeue(self, waiter: Waiter) -> None:
        self.queue.remove(waiter)
        self.timers.cancel(Timer(TimerKind.WAITER, waiter.id))

    def fail_waiter(self, waiter: Waiter, error: GatewayError) -> None:
        """The caller gets this error and is forgotten. Whoever calls has taken it from its place."""
        del self.waiters[waiter.id]
        self.timers.cancel(Timer(TimerKind.WAITER, waiter.id))
        self.emit(FailWaiter(waiter.id, fresh(error)))

    def fail_entry(self, entry: Entry, error: GatewayError) -> None:
        """All who wait in it get this error."""
        self.queue.drop(entry.key)
        for waiter in entry.waiters.values():
            self.fail_waiter(waiter, error)
        for admin in entry.admins:
            self.timers.cancel(Timer(TimerKind.ADMIN_LOAD, admin.id))
            self.emit(AnswerAdmin(admin.id, fresh(error)))
