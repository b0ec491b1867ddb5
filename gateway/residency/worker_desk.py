"""What workers report: loads that end, workers that die, bytes that come free.

An event of a generation that is gone is counted and dropped; only the release of its bytes still counts.
"""

from __future__ import annotations

from typing import Protocol

from gateway.errors import (
    GatewayError,
    ModelLoadFailed,
    ModelNotFound,
    ModelUnloaded,
    ServerOverloaded,
    ShuttingDown,
    WorkerDied,
)
from gateway.residency.admin_desk import AdminDesk
from gateway.residency.callers import in_turn
from gateway.residency.effects import EndLease, ObserveRelease, PersistLearned, SetGrant
from gateway.residency.events import (
    LoadFailed,
    LoadProgress,
    ReleaseObserved,
    WidthChanged,
    WorkerExited,
    WorkerReady,
    WorkerStarted,
)
from gateway.residency.front_desk import FrontDesk
from gateway.residency.house import House, fresh
from gateway.residency.queue import Claim
from gateway.residency.resident import ResidencyManager
from gateway.residency.sizes import Measured
from gateway.residency.states import Cause, State, Trigger

__all__ = ["WorkerDesk"]


class _FromWorker(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def generation(self) -> int: ...


class WorkerDesk:
    """The shell's reports about worker processes."""

    def __init__(self, house: House, front: FrontDesk, admin: AdminDesk) -> None:
        self.house = house
        self.front = front
        self.admin = admin

    def started(self, event: WorkerStarted) -> None:
        resident = self._current(event)
        if resident is not None:
            resident.current.pid = event.pid

    def progress(self, event: LoadProgress) -> None:
        resident = self._loading(event)
        if resident is not None:
            resident.progressed(event.fraction)

    def ready(self, event: WorkerReady) -> None:
        """LOADING → LOADED, and everybody who waits for it is served in this step.

        1. What was measured: the charge follows it, the learned values too. More than there is: the grant shrinks first.
        2. LOADED; the operators' answers.
        3. Each joiner gets its lease; while more is charged than there is, it queues instead (``memory.py`` mends that).
        4. An unload that came meanwhile begins now.
        """
        resident = self._loading(event)
        if resident is None:
            return
        # 1.
        self._measure(resident, event)
        # 2.
        joiners, admins = in_turn(resident.joiners.values()), list(resident.admin_loads)
        resident.joiners.clear()
        resident.admin_loads.clear()
        resident.loaded()
        for caller in admins:
            self.admin.answer_loaded(caller, resident)
        # 3.
        for waiter in joiners:
            if self.house.open:
                self.front.grant(resident, waiter)
            else:
                self.house.enqueue(waiter)
        # 4.
        if resident.unloads:
            self.admin.begin_drain(resident, Trigger.UNLOAD_DRAIN)

    def _measure(self, resident: ResidencyManager, event: WorkerReady) -> None:
        house, info, current = self.house, resident.infos[0], resident.current
        if not info.simulated:
            value = house.learned.observe(
                info.content_key, info.footprint, event.static_bytes, event.kv_bytes_per_token
            )
            if value is not None:
                house.emit(PersistLearned(info.content_key, value))
            if event.baseline_bytes:
                current.baseline = house.baseline_bytes = event.baseline_bytes
        current.measured = Measured(static=event.static_bytes)
        resident.width = event.width
        resident.recharge()
        spare = current.grant - resident.sizes.floor
        if not house.open and spare > 0:
            current.grant -= min(spare, -house.budget.available_bytes)
            resident.recharge()
            house.emit(SetGrant(resident.key, resident.generation, current.grant))

    def width_changed(self, event: WidthChanged) -> None:
        resident = self._current(event)
        if resident is not None:
            resident.width = event.width

    def failed(self, event: LoadFailed) -> None:
        resident = self._loading(event)
        if resident is not None:
            self.fail_load(resident, Trigger.LOAD_FAILED, event.error)

    def load_timeout(self, key: str) -> None:
        """No progress for ``load_timeout_s``."""
        resident = self.house.residents[key]
        limit = resident.policy.load_timeout_s
        error = ModelLoadFailed(f"model {resident.name!r} made no progress in loading for {limit:.0f} s")
        self.fail_load(resident, Trigger.LOAD_FAILED, error)

    def fail_load(self, resident: ResidencyManager, trigger: Trigger, error: GatewayError) -> None:
        """One error to everybody who waits for the load. An unload that waits for it has what it wants."""
        self.clear_load(resident, error)
        resident.load_failed(trigger, error)
        if resident.unloads:
            resident.recause(Cause.ADMIN)

    def clear_load(self, resident: ResidencyManager, error: GatewayError) -> None:
        """Everybody who waits for the load gets this error."""
        joiners = list(resident.joiners.values())
        resident.joiners.clear()
        for waiter in joiners:
            self.house.fail_waiter(waiter, error)
        self.admin.fail_loads(resident, error)

    def yield_load(self, resident: ResidencyManager, trigger: Trigger, claim: Claim | None = None) -> None:
        """A load that no caller waits for gives up its slot and bytes."""
        cause = Cause.ABANDONED if resident.abandoned else Cause.EVICTED
        self.clear_load(
            resident, ServerOverloaded(f"the load of model {resident.name!r} gave way to callers of another")
        )
        resident.abort(trigger, cause, claim)

    def exited(self, event: WorkerExited) -> None:
        """The process group is gone; what it holds beyond that stays charged."""
        house = self.house
        house.workers.discard((event.key, event.generation))
        resident = self._current(event)
        if resident is not None and resident.state is State.LOADING:
            what = f"the worker of model {resident.name!r} ended while it was loading: {event.detail}"
            self.fail_load(resident, Trigger.WORKER_EXITED, ModelLoadFailed(what))
        charged = house.budget.of(event.key, event.generation) is not None
        released = house.settle(event.key, event.generation, event.held_bytes)
        if charged and not released:
            house.emit(ObserveRelease(event.key, event.generation))
        if resident is None:
            return
        if resident.state is State.UNLOADING:
            if released:
                self.gone(resident, Trigger.WORKER_EXITED)
            else:
                resident.lose_worker()
        elif resident.state in (State.LOADED, State.DRAINING):
            if not released:
                house.budget.mark_unreleased(event.key, event.generation)
            self._died(resident, event.detail)

    def release_observed(self, event: ReleaseObserved) -> None:
        """Bytes of a worker that is gone: credited whatever its generation."""
        if (event.key, event.generation) in self.house.workers:
            self.house.count("release of a live worker")
            return
        released = self.house.settle(event.key, event.generation, event.held_bytes)
        resident = self.house.residents.get(event.key)
        if resident is None or resident.generation != event.generation or resident.state is not State.UNLOADING:
            self.house.count("release of an old generation")
        elif released:
            self.gone(resident, Trigger.RELEASE_OBSERVED)

    def unload_timeout(self, key: str) -> None:
        """The worker does not end, or its bytes do not come free."""
        resident = self.house.residents[key]
        resident.kill()
        self.house.budget.mark_unreleased(key, resident.generation)
        self.house.announce(resident, State.UNLOADING, "unreleased")
        self.gone(resident, Trigger.UNLOAD_TIMED_OUT)

    def gone(self, resident: ResidencyManager, trigger: Trigger) -> None:
        """UNLOADING → its target; whoever queued is planned again at the step's end, or gets the 503 of FAILED."""
        resident.gone(trigger)
        self.admin.answer_unloaded(resident)
        self.fail_queued_in_backoff(resident)

    def fail_queued_in_backoff(self, resident: ResidencyManager) -> None:
        entry = self.house.queue.get(resident.key)
        if entry is not None and resident.in_backoff:
            self.house.fail_entry(entry, self.front.backoff_error(resident))

    def _died(self, resident: ResidencyManager, detail: str) -> None:
        """A worker that was serving is gone.

        1. For itself or for a rival: FAILED with a backoff; else what it was draining for.
        2. Requests that had begun get an error event, and are never replayed.
        3. The others wait for the next generation, unless there is a backoff or no such generation.
        4. Whoever queued is planned again, or gets the 503 of the backoff.
        """
        # 1.
        error: GatewayError = WorkerDied(f"the worker of model {resident.name!r} died: {detail}")
        failed = resident.state is State.LOADED or resident.cause is Cause.FAIRNESS
        wait = resident.backoff.record(self.house.now, served=resident.current.served) if failed else 0.0
        cut = self._why_not_again(resident, wait)
        for lease in list(resident.leases.values()):
            # 2.
            if lease.admitted or cut is not None:
                told = WorkerDied(error.message, retry=False) if lease.admitted else cut
                assert told is not None
                self.front.forget_lease(lease)
                del self.house.waiters[lease.waiter.id]
                self.house.emit(EndLease(lease.id, fresh(told)))
            # 3.
            else:
                self.front.requeue(lease)
        resident.died(State.FAILED if failed else State.UNLOADED, error)
        # 4.
        self.admin.answer_unloaded(resident)
        self.fail_queued_in_backoff(resident)

    def _why_not_again(self, resident: ResidencyManager, wait: float) -> GatewayError | None:
        """Why a request that had not begun does not go to the next generation; None: it does."""
        name = resident.name
        if resident.cause is Cause.SHUTDOWN:
            return ShuttingDown("the gateway is shutting down")
        if resident.cause is Cause.REMOVED:
            return ModelNotFound(f"model {name!r} was removed from the registry", param="model")
        if resident.aborting:
            return ModelUnloaded(f"model {name!r} is being unloaded")
        if wait > 0:
            return WorkerDied(f"the worker of model {name!r} died (next try in {wait:.0f} s)", retry_after_s=wait)
        return None

    # ---

    def _current(self, event: _FromWorker) -> ResidencyManager | None:
        """The resident whose present generation this is; None (counted) when it is another's."""
        resident = self.house.residents.get(event.key)
        holds = self.house.budget.of(event.key, event.generation) is not None
        if resident is None or resident.generation != event.generation or not holds:
            self.house.count(f"{type(event).__name__} of an old generation")
            return None
        return resident

    def _loading(self, event: _FromWorker) -> ResidencyManager | None:
        """The same, while it is LOADING."""
        resident = self._current(event)
        if resident is not None and resident.state is not State.LOADING:
            self.house.count(f"{type(event).__name__} in {resident.state.value}")
            return None
        return resident
