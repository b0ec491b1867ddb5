"""A changed registry: who keeps its resident, who moves to another key, who is gone. And the end of everything."""

from __future__ import annotations

from gateway.errors import GatewayError, ShuttingDown
from gateway.residency.admin_desk import AdminDesk
from gateway.residency.callers import AdminCaller
from gateway.residency.effects import AnswerAdmin
from gateway.residency.events import RegistryChanged, Shutdown
from gateway.residency.fairness import revoke
from gateway.residency.front_desk import FrontDesk
from gateway.residency.house import House, fresh
from gateway.residency.resident import ResidencyManager
from gateway.residency.shared_policy import SharedPolicy
from gateway.residency.states import Cause, State, Trigger
from gateway.residency.timers import Timer, TimerKind
from gateway.residency.values import ModelInfo
from gateway.residency.worker_desk import WorkerDesk

__all__ = ["RegistryDesk"]

_LEASES_MARGIN_S = 3.0  # of the grace: leases end so long before
_KILL_MARGIN_S = 1.0  # of the grace: workers that have not ended are killed so long before


class RegistryDesk:
    """``RegistryChanged`` and ``Shutdown``."""

    def __init__(self, house: House, front: FrontDesk, admin: AdminDesk, workers: WorkerDesk) -> None:
        self.house = house
        self.front = front
        self.admin = admin
        self.workers = workers

    def changed(self, event: RegistryChanged) -> None:
        """Takes the new registry.

        1. Pins that operators set last until unpin or removal; a registry pin taken away by one, until the key changes there.
        2. Each key's ids and policies; a key that has none any more is orphaned, an orphan that has one again is not.
        3. Callers who wait follow their id: to its new key, or to a 404.
        4. Orphans leave, as the table says; clocks follow the new policies.
        5. What the registry wants loaded, and did not before.
        """
        house, before = self.house, self.house.models
        house.models = {info.id: info for info in event.models}
        # 1.
        for id in list(house.pins):
            info, old = house.models.get(id), before.get(id)
            changed = info is not None and old is not None and info.policy.pin != old.policy.pin
            if info is None or (changed and not house.pins[id]):
                del house.pins[id]
        # 2.
        orphans = self._assign_keys(event.models, before)
        # 3.
        for waiter in list(house.waiters.values()):
            if waiter.lease is None:
                self._follow(waiter.id)
        for resident in list(house.residents.values()):
            self._follow_admins(resident)
        # 4.
        for resident in orphans:
            self._orphan(resident)
        for resident in house.residents.values():
            self.admin.pins_changed(resident)
        # 5.
        for info in event.models:
            old = before.get(info.id)
            same = old is not None and old.policy.preload and old.resident_key == info.resident_key
            if info.policy.preload and not same and info.error is None and not house.shutting_down:
                self.admin.preload(info.id)

    def _assign_keys(self, models: tuple[ModelInfo, ...], before: dict[str, ModelInfo]) -> list[ResidencyManager]:
        """Gives each resident its ids; returns those that have lost their last one."""
        house = self.house
        by_key: dict[str, list[ModelInfo]] = {}
        for info in models:
            by_key.setdefault(info.resident_key, []).append(info)
        orphans = []
        for key, resident in house.residents.items():
            if key not in by_key and not resident.orphaned:
                reloaded = any(id in house.models for id in resident.ids)
                resident.orphaned = Cause.RELOAD if reloaded else Cause.REMOVED
                orphans.append(resident)
        for key, infos in by_key.items():
            known = house.residents.get(key)
            if known is None:
                known = house.residents[key] = ResidencyManager(key, house, infos)
            known.policy, known.orphaned = SharedPolicy.of(infos), None
            moved = [before[info.id].resident_key for info in infos if info.id in before]
            known.predecessors = self._holding(key, moved)
        return orphans

    def _holding(self, key: str, moved: list[str]) -> tuple[str, ...]:
        """Of the keys from which its ids moved to this one, and from which they had moved there: orphans that hold bytes."""
        residents = self.house.residents
        earlier = [old for mover in (*moved, key) if mover in residents for old in residents[mover].predecessors]
        return tuple(
            old
            for old in dict.fromkeys((*moved, *earlier))
            if old != key and old in residents and residents[old].orphaned and residents[old].charge
        )

    def _follow(self, waiter_id: int) -> None:
        waiter = self.house.waiters[waiter_id]
        info = self.house.models.get(waiter.model)
        if info is None or info.error is not None or info.resident_key != waiter.key:
            timers, timer = self.house.timers, Timer(TimerKind.WAITER, waiter_id)
            due = timers.at(timer)
            self.front.take_out(waiter)
            self.front.place(waiter)
            if due is not None and timers.at(timer) is not None:
                timers.set(timer, due)  # it has waited before: another key is no new beginning

    def _follow_admins(self, resident: ResidencyManager) -> None:
        house = self.house
        entry = house.queue.get(resident.key)
        lists = [resident.admin_loads, *([entry.admins] if entry else [])]
        for callers in lists:
            for caller in list(callers):
                info = house.models.get(caller.model)
                if info is not None and info.error is None and info.resident_key == resident.key:
                    continue
                callers.remove(caller)
                self._place_admin(caller, info)
        if entry is not None:
            entry.preload = entry.preload and not resident.orphaned
            house.queue.prune(entry)

    def _place_admin(self, caller: AdminCaller, info: ModelInfo | None) -> None:
        if info is not None and info.error is None:
            self.admin.place(caller)
            return
        self.house.timers.cancel(Timer(TimerKind.ADMIN_LOAD, caller.id))
        error: GatewayError = self.house.not_found(caller.model) if info is None or info.error is None else info.error
        self.house.emit(AnswerAdmin(caller.id, fresh(error)))

    def _orphan(self, resident: ResidencyManager) -> None:
        """No id has its key any more; its callers have been taken out. It finishes its leases, and is forgotten."""
        assert resident.orphaned is not None
        reload = resident.orphaned is Cause.RELOAD
        self._leave(resident, Trigger.LOAD_KEYS_CHANGED if reload else Trigger.LAST_ID_REMOVED, resident.orphaned)

    def _leave(self, resident: ResidencyManager, trigger: Trigger, cause: Cause) -> None:
        if resident.state is State.LOADING:
            resident.abort(trigger, cause)
        elif resident.state is State.LOADED:
            resident.drain(trigger, cause)
        elif resident.state in (State.DRAINING, State.UNLOADING):
            revoke(self.house, resident)
            resident.recause(cause)
        elif resident.state is State.FAILED:
            resident.clear_failure(trigger)

    # --- shutdown

    def shutdown(self, event: Shutdown) -> None:
        """Queue and loads are cancelled, leases run on; a second one may shorten the grace."""
        house = self.house
        first = not house.shutting_down
        grace = max(0.0, event.grace_s)
        house.shutdown_at = min(house.shutdown_at, house.now + grace)
        house.drain_until = min(house.drain_until, house.now + max(grace - _LEASES_MARGIN_S, grace / 2))
        house.unload_until = min(house.unload_until, house.now + max(grace - _KILL_MARGIN_S, grace * 3 / 4))
        house.timers.set(Timer(TimerKind.SHUTDOWN), house.shutdown_at)
        error = ShuttingDown("the gateway is shutting down")
        for entry in list(house.queue):
            house.fail_entry(entry, error)
        for resident in house.residents.values():
            if resident.state is State.LOADING:
                self.workers.clear_load(resident, error)
            if first or resident.state in (State.DRAINING, State.UNLOADING):
                self._leave(resident, Trigger.SHUTDOWN, Cause.SHUTDOWN)
            if resident.state is State.UNLOADING:
                resident.watch_unload()

    def drain_deadline(self, key: str) -> None:
        """A reload or removal drain lasts; the leases of a shutdown have had their time."""
        resident = self.house.residents[key]
        if resident.cause is Cause.SHUTDOWN:
            self.front.cut_leases(resident, ShuttingDown("the gateway is shutting down", retry=False))
            resident.kill_drain(Trigger.DRAIN_DEADLINE)
        else:
            resident.still_draining()
