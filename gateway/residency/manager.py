"""The residency core: ``handle(event, now) -> list[Effect]``.

Synchronous; it never awaits and never logs. One step is: the event is taken by the desk it belongs to, deadlines that have
come are honoured, and the planner looks at the queue until nothing changes. Events and effects: ``messages.py``; states:
``states.py``.

===============  =====================================================================
``front_desk``   callers: requests, cancels, leases
``worker_desk``  workers: loads, deaths, releases
``admin_desk``   operators: load, unload, pin
``registry_desk``  reload and shutdown
``memory``       reports, growth, overrun
``planner``      the queue: start, evict, drain, overtake
===============  =====================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engines.wire import Priority
from gateway.residency import events, fairness
from gateway.residency.admin_desk import AdminDesk
from gateway.residency.effects import Effect, GrantLease, SetTimer, ShutdownComplete
from gateway.residency.explain import Explanation, explain
from gateway.residency.front_desk import FrontDesk
from gateway.residency.house import House
from gateway.residency.integrity import check_integrity
from gateway.residency.memory import MemoryDesk
from gateway.residency.planner import Planner
from gateway.residency.registry_desk import RegistryDesk
from gateway.residency.room import Room
from gateway.residency.scheduling import Capacity, estimated
from gateway.residency.shared_policy import caller_limit
from gateway.residency.states import Cause, State, Trigger
from gateway.residency.statistics import Statistics, take_statistics
from gateway.residency.timers import Timer, TimerKind
from gateway.residency.values import LearnedValue, ManagerSettings, WaiterId
from gateway.residency.worker_desk import WorkerDesk

__all__ = ["ModelManager"]

_QUIET = (events.LeaseAdmitted, events.WorkerStarted, events.LoadProgress, events.WidthChanged)
"""Events that free no byte and no place: nothing is planned after them. The first comes with every request."""


class ModelManager:
    """See the module. ``device_free`` is asked before a real model loads (None: not known, or a rehearsal)."""

    def __init__(
        self,
        settings: ManagerSettings,
        learned: Mapping[str, LearnedValue] | None = None,
        device_free: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._house = house = House(settings, learned, device_free)
        self._room = room = Room(house)
        self._front = front = FrontDesk(house)
        admin = AdminDesk(house, front)
        workers = WorkerDesk(house, front, admin)
        memory = MemoryDesk(house, room, workers)
        registry = RegistryDesk(house, front, admin, workers)
        self._planner = Planner(house, room, front, admin, workers, memory)
        self._timer: float | None = None  # the last SetTimer
        self._completed = False  # ShutdownComplete was sent
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Request: front.request,
            events.CancelWaiter: front.cancel,
            events.LeaseReleased: front.release,
            events.LeaseAdmitted: front.admitted,
            events.KeepAlive: front.keep_alive,
            events.WorkerStarted: workers.started,
            events.LoadProgress: workers.progress,
            events.WorkerReady: workers.ready,
            events.LoadFailed: workers.failed,
            events.WorkerExited: workers.exited,
            events.ReleaseObserved: workers.release_observed,
            events.MemoryReport: memory.report,
            events.GrowRequest: memory.ask,
            events.WidthChanged: workers.width_changed,
            events.OverheadMeasured: memory.overhead,
            events.AdminLoad: admin.load,
            events.AdminUnload: admin.unload,
            events.Pin: admin.pin,
            events.Unpin: admin.unpin,
            events.RegistryChanged: registry.changed,
            events.Shutdown: registry.shutdown,
            events.Tick: lambda _: None,
        }
        self._due: dict[TimerKind, Callable[[Any], None]] = {
            TimerKind.LOAD: workers.load_timeout,
            TimerKind.ABANDON: lambda key: workers.yield_load(house.residents[key], Trigger.LAST_WAITER_CANCELS),
            TimerKind.IDLE: lambda key: house.residents[key].unload(Trigger.IDLE_TIMEOUT, Cause.IDLE),
            TimerKind.DRAIN: registry.drain_deadline,
            TimerKind.INTENT: lambda rival: fairness.expire(house, rival),
            TimerKind.FAIRNESS: lambda _: None,  # the planner looks at the clock
            TimerKind.IMMUNITY: lambda _: None,
            TimerKind.UNLOAD: workers.unload_timeout,
            TimerKind.WAITER: front.queue_timeout,
            TimerKind.ADMIN_LOAD: admin.load_timeout,
            TimerKind.ADMIN_UNLOAD: admin.unload_deadline,
            TimerKind.SHUTDOWN: lambda _: None,
        }

    def handle(self, event: events.Event, now: float) -> list[Effect]:
        """One step. The effects are run in order."""
        house = self._house
        house.now, house.effects = now, []
        if isinstance(event, events.Tick):
            self._timer = None  # the shell's timer may have been early: it is told again
        self._handlers[type(event)](event)
        if not isinstance(event, _QUIET):
            self._planner.run()
        while (timer := house.timers.pop_due(now)) is not None:
            self._due[timer.kind](timer.subject)
            self._planner.run()
        self._sweep()
        self._finish()
        effects, house.effects = house.effects, []
        return effects

    def acquire_nowait(
        self, waiter: WaiterId, model: str, client: str, route: str, now: float, priority: Priority = "normal"
    ) -> GrantLease | None:
        """A lease on a model that is LOADED; None: send ``Request``. O(1), and no effects to run."""
        self._house.now = now
        return self._front.acquire_nowait(waiter, model, client, route, priority)

    @property
    def queue_is_full(self) -> bool:
        """As many callers without service as the gateway takes."""
        return self._house.callers_without_service >= self._house.settings.global_queue_limit

    def statistics(self, now: float) -> Statistics:
        """A frozen picture for ``/admin/status`` and the metrics."""
        self._house.now = now
        return take_statistics(self._house)

    def plan(self, model: str, now: float) -> Explanation:
        """What a request for this id would lead to now, without doing it. ModelNotFound when there is no such id."""
        self._house.now = now
        return explain(self._house, self._room, model)

    def estimate(self, model: str) -> Capacity | None:
        """What its next load would hold, from its header; None of an id that is unknown or cannot be used."""
        house = self._house
        info = house.models.get(model)
        if info is None or info.error is not None:
            return None
        resident = house.residents[info.resident_key]
        limit = caller_limit(info, resident.width)
        return estimated(resident.footprint, grant_bytes=resident.sizes.full, width=resident.width, queue_limit=limit)

    def check_integrity(self) -> None:
        """AssertionError when an invariant does not hold; between steps all of them do."""
        check_integrity(self._house)

    # ---

    def _sweep(self) -> None:
        """Forgets orphans that hold nothing any more."""
        residents = self._house.residents
        for resident in [r for r in residents.values() if r.orphaned and r.state is State.UNLOADED]:
            del residents[resident.key]
            self._house.timers.cancel(Timer(TimerKind.IMMUNITY, resident.key))

    def _finish(self) -> None:
        house = self._house
        if house.shutting_down and not self._completed and (not house.workers or house.now >= house.shutdown_at):
            self._completed = True
            house.emit(ShutdownComplete())
        at = house.timers.next()
        if at != self._timer:
            self._timer = at
            house.emit(SetTimer(at))
