"""Callers: requests, cancels, leases.

A waiter is queued, or joined to a load, or holds a lease; ``CancelWaiter`` finds it wherever it is.
"""

from __future__ import annotations

from engines.wire import Priority
from gateway.errors import GatewayError, ModelUnloaded, QueueTimeout, ServerOverloaded, ShuttingDown, Unavailable
from gateway.residency.callers import LeaseRecord, Waiter
from gateway.residency.effects import CancelLease, EndLease, FailWaiter, GrantLease, RequeueLease
from gateway.residency.events import CancelWaiter, KeepAlive, LeaseAdmitted, LeaseReleased, Request
from gateway.residency.house import House, fresh
from gateway.residency.resident import ResidencyManager
from gateway.residency.service_rate import retry_after_s
from gateway.residency.shared_policy import caller_limit
from gateway.residency.states import State
from gateway.residency.values import ModelInfo, WaiterId

__all__ = ["FrontDesk"]


class FrontDesk:
    """What callers ask, and what they are told."""

    def __init__(self, house: House) -> None:
        self.house = house

    def acquire_nowait(
        self, waiter: WaiterId, model: str, client: str, route: str, priority: Priority
    ) -> GrantLease | None:
        """A lease on a model that is LOADED, or None: then a ``Request`` says why, or waits. O(1)."""
        house = self.house
        info = house.models.get(model)
        if info is None or info.error is not None or house.shutting_down or not house.open:
            return None
        resident = house.residents[info.resident_key]
        if resident.state is not State.LOADED or self._is_crowded(resident, info, priority):
            return None
        return self._lease(resident, self._arrive(waiter, info, client, route, priority))

    def request(self, event: Request) -> None:
        """Refused at once, granted, joined to a load, or queued; the planner looks at the queue at the step's end.

        1. Shutting down 503; unknown id 404; an id that cannot be used: its own error.
        2. Too many callers 503, with when those who wait now will have been served.
        3. LOADED, and what is charged is within the budget: a lease.
        4. LOADING without an unload intent: joins.
        5. FAILED within the backoff: 503 with the rest.
        6. Else the queue: behind an intent, a teardown, or for room.
        """
        house = self.house
        info = house.models.get(event.model)
        # 1.
        error: GatewayError | None = None
        if house.shutting_down:
            error = ShuttingDown("the gateway is shutting down")
        elif info is None:
            error = house.not_found(event.model)
        elif info.error is not None:
            error = fresh(info.error)
        if error is not None or info is None:
            assert error is not None
            house.emit(FailWaiter(event.waiter, error))
            return
        resident = house.residents[info.resident_key]
        # 2.
        if self._is_crowded(resident, info, event.priority):
            house.emit(FailWaiter(event.waiter, self._overloaded(resident, info, event.priority)))
            return
        waiter = self._arrive(event.waiter, info, event.client, event.route, event.priority)
        # 3.
        if resident.state is State.LOADED and house.open:
            self.grant(resident, waiter)
        # 4.
        elif resident.state is State.LOADING and not resident.unloads:
            resident.joiners[waiter.id] = waiter
            resident.watch_abandon()
        # 5.
        elif resident.in_backoff:
            house.fail_waiter(waiter, self.backoff_error(resident))
        # 6.
        else:
            house.enqueue(waiter)

    def cancel(self, event: CancelWaiter) -> None:
        """The caller is gone, wherever it is."""
        waiter = self.house.waiters.get(event.waiter)
        if waiter is None:
            self.house.count("cancel of no waiter")
        elif waiter.lease is not None:
            self.end_lease(self.house.leases[waiter.lease])
        else:
            self.take_out(waiter)
            del self.house.waiters[waiter.id]

    def release(self, event: LeaseReleased) -> None:
        """The lease has ended. Again, or of one that was ended for its caller: nothing."""
        lease = self.house.leases.get(event.lease)
        if lease is None:
            self.house.count("release of no lease")
        else:
            self.end_lease(lease)

    def admitted(self, event: LeaseAdmitted) -> None:
        """Its prefill began: not queued any more."""
        lease = self.house.leases.get(event.lease)
        if lease is None or lease.admitted:
            self.house.count("admission of no lease")
            return
        lease.admitted = True
        resident = self.house.residents[lease.key]
        resident.unadmitted -= 1
        resident.current.served = True
        self.house.unadmitted -= 1

    def keep_alive(self, event: KeepAlive) -> None:
        """How long this generation stays after its last lease."""
        info = self.house.models.get(event.model)
        resident = self.house.residents[info.resident_key] if info is not None else None
        if resident is None or resident.state not in (State.LOADING, State.LOADED, State.DRAINING):
            self.house.count("keep_alive of nothing loaded")
            return
        resident.current.keep_alive_s = event.seconds
        resident.watch_idle()

    def queue_timeout(self, waiter: WaiterId) -> None:
        """It has been queued for ``queue_timeout_s``."""
        caller = self.house.waiters[waiter]
        self.house.dequeue(caller)
        waited = self.house.now - caller.since
        self.house.fail_waiter(caller, QueueTimeout(f"model {caller.model!r} found no room within {waited:.0f} s"))

    # --- verbs of other parts

    def grant(self, resident: ResidencyManager, waiter: Waiter) -> None:
        """A lease for a caller that has been taken from its place."""
        self.house.emit(self._lease(resident, waiter))

    def take_out(self, waiter: Waiter) -> None:
        """From the queue or from a load; the caller says what becomes of it."""
        resident = self.house.residents[waiter.key]
        if resident.joiners.pop(waiter.id, None) is not None:
            resident.watch_abandon()
        else:
            self.house.dequeue(waiter)

    def end_lease(self, lease: LeaseRecord) -> None:
        """The lease and its waiter are forgotten; the last one of a drain leads to the teardown."""
        resident = self.forget_lease(lease)
        del self.house.waiters[lease.waiter.id]
        if resident.state is State.DRAINING and not resident.leases:
            resident.last_release()

    def forget_lease(self, lease: LeaseRecord) -> ResidencyManager:
        """Takes a lease from its resident; its waiter stays, without a place."""
        house = self.house
        resident = house.residents[lease.key]
        resident.drop_lease(lease)
        house.unadmitted -= not lease.admitted
        del house.leases[lease.id]
        lease.waiter.lease = None
        return resident

    def cut_leases(self, resident: ResidencyManager, error: GatewayError) -> None:
        """All its leases end here with this error; its worker is gone or about to be killed."""
        for lease in list(resident.leases.values()):
            self.forget_lease(lease)
            del self.house.waiters[lease.waiter.id]
            self.house.emit(EndLease(lease.id, fresh(error)))

    def cancel_leases(self, resident: ResidencyManager) -> None:
        """Asks the worker to cancel all its requests; each lease ends when its terminal event has come."""
        for lease in resident.leases.values():
            self.house.emit(CancelLease(lease.id, ModelUnloaded(f"model {lease.waiter.model!r} is being unloaded")))

    def requeue(self, lease: LeaseRecord) -> None:
        """Its worker is gone before the request began: the caller waits again, in its old place."""
        self.forget_lease(lease)
        self.house.emit(RequeueLease(lease.id, lease.waiter.id))
        self.place(lease.waiter)

    def place(self, waiter: Waiter) -> None:
        """Queues a caller for the key that its model has now; 404, or the model's error, where there is none."""
        info = self.house.models.get(waiter.model)
        if info is None:
            self.house.fail_waiter(waiter, self.house.not_found(waiter.model))
        elif info.error is not None:
            self.house.fail_waiter(waiter, info.error)
        elif (resident := self.house.residents[info.resident_key]).in_backoff:
            self.house.fail_waiter(waiter, self.backoff_error(resident))
        else:
            waiter.key = info.resident_key
            self.house.enqueue(waiter)

    def backoff_error(self, resident: ResidencyManager) -> GatewayError:
        """What a caller is told within the backoff: the last error, and when to try again."""
        error, rest = resident.last_error, resident.backoff.rest(self.house.now)
        assert error is not None
        if not isinstance(error, Unavailable):
            return fresh(error)
        return type(error)(f"{error.message} (next try in {rest:.0f} s)", retry_after_s=rest, retry=error.retry)

    # ---

    def _arrive(self, waiter: WaiterId, info: ModelInfo, client: str, route: str, priority: Priority) -> Waiter:
        house = self.house
        caller = Waiter(waiter, info.id, info.resident_key, client, route, house.next_place(priority), house.now)
        house.waiters[waiter] = caller
        return caller

    def _lease(self, resident: ResidencyManager, waiter: Waiter) -> GrantLease:
        house = self.house
        assert house.open, "nothing is granted while more is charged than there is"
        assert resident.state is State.LOADED, "leases are granted on LOADED residents only"
        lease = LeaseRecord(house.next_lease(), waiter, resident.key, resident.generation, house.now)
        waiter.lease = lease.id
        house.leases[lease.id] = lease
        house.unadmitted += 1
        resident.add_lease(lease)
        return GrantLease(waiter.id, lease.id, waiter.model, resident.key, resident.generation)

    def _callers(self, resident: ResidencyManager) -> int:
        """Those without a lease, and those whose request has not begun."""
        entry = self.house.queue.get(resident.key)
        return resident.unadmitted + len(resident.joiners) + (len(entry.waiters) if entry else 0)

    def _is_crowded(self, resident: ResidencyManager, info: ModelInfo, priority: Priority) -> bool:
        """At the cap of the resident, or of all."""
        return (
            self._callers(resident) >= caller_limit(info, resident.width, priority)
            or self.house.callers_without_service >= self.house.settings.global_queue_limit
        )

    def _overloaded(self, resident: ResidencyManager, info: ModelInfo, priority: Priority) -> ServerOverloaded:
        """The 503 of whichever cap is reached: the resident's own, else that of all."""
        house = self.house
        waiting, limit = self._callers(resident), caller_limit(info, resident.width, priority)
        if waiting >= limit:
            retry = retry_after_s(waiting, resident.service.per_second(house.now), resident.load_rest_s)
            whom = "as many as may (queue_limit)"
            if limit < caller_limit(info, resident.width):
                whom = "as many as may before one of priority batch (three quarters of queue_limit)"
            what = f"{waiting} requests wait for model {info.id!r}, {whom}"
        else:
            waiting = house.callers_without_service
            rates = [rate for r in house.residents.values() if (rate := r.service.per_second(house.now)) is not None]
            retry = retry_after_s(waiting, sum(rates) if rates else None)
            what = f"{waiting} requests wait in this server, as many as may"
        return ServerOverloaded(what, retry_after_s=retry)
