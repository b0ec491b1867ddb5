"""Operators: load, unload, pin, unpin."""

from __future__ import annotations

from gateway.errors import Conflict, GatewayError, ModelUnloaded, QueueTimeout, ShuttingDown
from gateway.residency.callers import AdminCaller, UnloadCaller
from gateway.residency.effects import AnswerAdmin
from gateway.residency.events import AdminLoad, AdminUnload, Pin, Unpin
from gateway.residency.fairness import revoke
from gateway.residency.front_desk import FrontDesk
from gateway.residency.house import House, fresh
from gateway.residency.resident import ResidencyManager
from gateway.residency.states import Cause, State, Trigger
from gateway.residency.timers import Timer, TimerKind
from gateway.residency.values import AdminAnswer, AdminId

__all__ = ["AdminDesk"]

_TRIGGERS = {"drain": Trigger.UNLOAD_DRAIN, "abort": Trigger.UNLOAD_ABORT, "force": Trigger.UNLOAD_FORCE}


class AdminDesk:
    """The verbs of ``/admin/models``; each is answered once."""

    def __init__(self, house: House, front: FrontDesk) -> None:
        self.house = house
        self.front = front

    # --- load

    def load(self, event: AdminLoad) -> None:
        """Joins the load under way, or queues behind the callers."""
        house = self.house
        caller = AdminCaller(event.admin, event.model)
        info = house.models.get(event.model)
        if house.shutting_down:
            self._answer(event.admin, ShuttingDown("the gateway is shutting down"))
        elif info is None:
            self._answer(event.admin, house.not_found(event.model))
        elif info.error is not None:
            self._answer(event.admin, fresh(info.error))
        else:
            self.place(caller)

    def place(self, caller: AdminCaller) -> None:
        """Answered, joined to the load under way, or queued for room or behind a teardown, as a caller is."""
        house = self.house
        info = house.models[caller.model]
        resident = house.residents[info.resident_key]
        self.solicit(resident)
        if resident.state is State.LOADED:
            self.answer_loaded(caller, resident)
        elif resident.state is State.LOADING:
            resident.admin_loads.append(caller)
        else:
            house.queue.open(resident.key, house.next_place()).admins.append(caller)
            house.timers.set(Timer(TimerKind.ADMIN_LOAD, caller.id), house.now + info.policy.queue_timeout_s)

    def preload(self, model: str) -> None:
        """The registry wants it loaded."""
        resident = self.house.resident_of(model)
        if resident.state is State.LOADED:
            return
        self.solicit(resident)
        if resident.state is not State.LOADING:
            self.house.queue.open(resident.key, self.house.next_place()).preload = True

    def solicit(self, resident: ResidencyManager) -> None:
        """An operator or a preload wants it: a load under way is not abandoned, a backoff is over."""
        if resident.state is State.LOADING:
            resident.solicited = True
            resident.watch_abandon()
        elif resident.state is State.FAILED:
            resident.backoff.clear()

    def load_timeout(self, admin: AdminId) -> None:
        """It has been queued for ``queue_timeout_s``."""
        for entry in self.house.queue:
            for caller in entry.admins:
                if caller.id == admin:
                    entry.admins.remove(caller)
                    self.house.queue.prune(entry)
                    self._answer(admin, QueueTimeout(f"model {caller.model!r} found no room"))
                    return

    def answer_loaded(self, caller: AdminCaller, resident: ResidencyManager) -> None:
        self._answer(caller.id, AdminAnswer(caller.model, State.LOADED.value, resident.generation))

    def fail_loads(self, resident: ResidencyManager, error: GatewayError) -> None:
        """The operators who wait for the load under way."""
        callers = list(resident.admin_loads)
        resident.admin_loads.clear()
        for caller in callers:
            self._answer(caller.id, fresh(error))

    # --- unload

    def unload(self, event: AdminUnload) -> None:
        """By state, as the table says.

        1. Unknown 404. Of an id that was reloaded, the resident it had before while that one is not gone.
        2. LOADING or LOADED and pinned 409, unless forced.
        3. UNLOADED, FAILED: done at once.
        4. LOADING: a drain serves who waits, and aborts where nobody does; abort and force abort.
        5. LOADED: drains; abort and force cancel the leases too.
        6. DRAINING: joins; abort upgrades; force kills.
        7. UNLOADING: joins; what was revocable is not any more; force kills.
        """
        house, trigger = self.house, _TRIGGERS[event.mode]
        # 1.
        if event.model not in house.models:
            self._answer(event.admin, house.not_found(event.model))
            return
        resident = self._held_by(event.model)
        # 2.
        pins = house.pinned_ids(resident)
        if pins and event.mode != "force" and resident.state in (State.LOADING, State.LOADED):
            self._answer(event.admin, self._pinned(event.model, pins))
            return
        if event.mode != "drain" and resident.state is not State.UNLOADING:
            self._fail_queued(resident)
        # 3.
        if resident.state in (State.UNLOADED, State.FAILED):
            if resident.state is State.FAILED:
                resident.clear_failure(trigger)
            self._answer(event.admin, AdminAnswer(event.model, State.UNLOADED.value, resident.generation))
            return
        resident.unloads[event.admin] = UnloadCaller(event.admin, event.model, event.mode, tuple(resident.leases))
        house.timers.set(Timer(TimerKind.ADMIN_UNLOAD, event.admin), house.now + event.deadline_s)
        # 4.
        if resident.state is State.LOADING:
            if event.mode != "drain":
                self._abort_load(resident, trigger)
            elif not resident.joiners and not resident.admin_loads:
                resident.abort(trigger, Cause.ADMIN)
        # 5.
        elif resident.state is State.LOADED:
            self.begin_drain(resident, trigger)
        # 6.
        elif resident.state is State.DRAINING:
            self._join_drain(resident, event, trigger)
        # 7.
        else:
            resident.recause(Cause.ADMIN)
            if event.mode == "force":
                resident.kill()

    def begin_drain(self, resident: ResidencyManager, trigger: Trigger) -> None:
        """LOADED → DRAINING or UNLOADING, for those in ``unloads``."""
        for caller in resident.unloads.values():
            caller.waited_for = tuple(resident.leases)
        resident.drain(trigger, Cause.ADMIN)
        if trigger is not Trigger.UNLOAD_DRAIN and resident.state is State.DRAINING:
            resident.aborting = True
            self.front.cancel_leases(resident)

    def _join_drain(self, resident: ResidencyManager, event: AdminUnload, trigger: Trigger) -> None:
        resident.recause(Cause.ADMIN)
        if event.mode == "force":
            self.kill_drain(resident, trigger)
        elif event.mode == "abort" and not resident.aborting:
            resident.aborting = True
            self.front.cancel_leases(resident)

    def kill_drain(self, resident: ResidencyManager, trigger: Trigger) -> None:
        """Its leases end here, and its worker is killed."""
        error = ModelUnloaded(f"model {resident.name!r} is being unloaded", retry=False)
        self.front.cut_leases(resident, error)
        resident.kill_drain(trigger)

    def unload_deadline(self, admin: AdminId) -> None:
        """The deadline that an unload gave.

        1. LOADING: 409, it goes on loading.
        2. DRAINING, and some caller wanted it aborted: kill.
        3. DRAINING: 409 with the leases; with no other unload LOADED again, unless it drains for another reason too.
        4. UNLOADING: a forced one is killed.
        """
        resident = next(r for r in self.house.residents.values() if admin in r.unloads)
        caller = resident.unloads[admin]
        # 1.
        if resident.state is State.LOADING:
            del resident.unloads[admin]
            self._answer(admin, Conflict(f"model {caller.model!r} is still being loaded", code="model_busy"))
        elif resident.state is State.DRAINING:
            # 2.
            if resident.aborting:
                self.kill_drain(resident, Trigger.DRAIN_DEADLINE)
                return
            # 3.
            del resident.unloads[admin]
            leases = ", ".join(resident.leases)
            self._answer(admin, Conflict(f"model {caller.model!r} is still in use by {leases}", code="model_busy"))
            if resident.unloads:
                return
            if resident.orphaned:
                resident.recause(resident.orphaned)
            elif resident.cause is Cause.ADMIN:
                resident.resume(Trigger.DRAIN_DEADLINE)
        # 4.
        elif caller.mode == "force":
            resident.kill()

    def answer_unloaded(self, resident: ResidencyManager) -> None:
        """Its bytes are released, or as good as it gets: everybody who waits for that."""
        for caller in resident.unloads.values():
            self.house.timers.cancel(Timer(TimerKind.ADMIN_UNLOAD, caller.id))
            answer = AdminAnswer(caller.model, State.UNLOADED.value, resident.generation, caller.waited_for)
            self._answer(caller.id, answer)
        resident.unloads.clear()

    def _held_by(self, model: str) -> ResidencyManager:
        resident = self.house.resident_of(model)
        before = self.house.before(resident)
        return before[0] if before and resident.state in (State.UNLOADED, State.FAILED) else resident

    def _abort_load(self, resident: ResidencyManager, trigger: Trigger) -> None:
        error = ModelUnloaded(f"model {resident.name!r} was unloaded while it was loading")
        joiners = list(resident.joiners.values())
        resident.joiners.clear()
        for waiter in joiners:
            self.house.fail_waiter(waiter, error)
        self.fail_loads(resident, error)
        resident.abort(trigger, Cause.ADMIN)

    def _fail_queued(self, resident: ResidencyManager) -> None:
        entry = self.house.queue.get(resident.key)
        if entry is not None:
            self.house.fail_entry(entry, ModelUnloaded(f"model {resident.name!r} was unloaded"))

    # --- pins

    def pin(self, event: Pin) -> None:
        """A flag; who is on the way out for a rival's sake, and can still be taken back, is."""
        if event.model not in self.house.models:
            self._answer(event.admin, self.house.not_found(event.model))
            return
        self.house.pins[event.model] = True
        resident = self.house.resident_of(event.model)
        self.pins_changed(resident)
        self._answer(event.admin, AdminAnswer(event.model, resident.state.value, resident.generation))

    def unpin(self, event: Unpin) -> None:
        """A flag; the idle clock counts again."""
        if event.model not in self.house.models:
            self._answer(event.admin, self.house.not_found(event.model))
            return
        self.house.pins[event.model] = False
        resident = self.house.resident_of(event.model)
        self.pins_changed(resident)
        self._answer(event.admin, AdminAnswer(event.model, resident.state.value, resident.generation))

    def pins_changed(self, resident: ResidencyManager) -> None:
        """The clocks that depend on a pin, and the drains that a pin takes back."""
        if resident.pinned:
            revoke(self.house, resident, Trigger.PIN)
        resident.watch_idle()
        resident.watch_abandon()

    # ---

    def _pinned(self, model: str, pins: list[str]) -> Conflict:
        names = ", ".join(repr(pin) for pin in pins)
        return Conflict(f"model {model!r} is pinned by {names}; unpin it first, or use mode force", code="model_pinned")

    def _answer(self, admin: AdminId, answer: AdminAnswer | GatewayError) -> None:
        self.house.timers.cancel(Timer(TimerKind.ADMIN_LOAD, admin))
        self.house.timers.cancel(Timer(TimerKind.ADMIN_UNLOAD, admin))
        self.house.emit(AnswerAdmin(admin, answer))
