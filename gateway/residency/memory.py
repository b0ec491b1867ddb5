"""Bytes of residents that are loaded: what they measure, what they ask for, and what happens when it is too much.

**Overrun**: more is charged than there is, since workers measured more. Admission closes: nothing is granted. Then, until
what is charged and not being torn down fits:

1. grants shrink to what is used of them, not below their floor
2. caches are shed, and the next report is waited for
3. idle unpinned residents are evicted, least recently used first, and loads nobody waits for
4. growth is denied meanwhile; nothing else helps: an event. No leased model is aborted for it.

**Growth** is for the requests that asked for it: with the last lease of a resident its grant goes back to what it was loaded
with, so that room is not lost to others for good.
"""

from __future__ import annotations

from gateway.residency import fairness
from gateway.residency.effects import DenyGrowth, SetGrant, Shed
from gateway.residency.events import GrowRequest, MemoryReport, OverheadMeasured
from gateway.residency.eviction import victims
from gateway.residency.generation import Growth
from gateway.residency.house import House
from gateway.residency.plan import choose_drain
from gateway.residency.queue import Claim
from gateway.residency.resident import ResidencyManager
from gateway.residency.room import Room, candidate
from gateway.residency.sizes import Measured
from gateway.residency.states import Cause, State, Trigger
from gateway.residency.worker_desk import WorkerDesk

__all__ = ["MemoryDesk"]

_SERVING = (State.LOADED, State.DRAINING)
_SHED_ANSWER_S = 3.0  # a worker reports each second; one that does not is not waited for


class MemoryDesk:
    """``MemoryReport``, ``GrowRequest``, and two steps of planning: ``govern`` and ``grow``."""

    def __init__(self, house: House, room: Room, workers: WorkerDesk) -> None:
        self.house = house
        self.room = room
        self.workers = workers
        self._told = False  # an event said that nothing helps; until the overrun has ended

    def report(self, event: MemoryReport) -> None:
        """The charge follows the reading."""
        resident = self._serving(event.key, event.generation)
        if resident is None:
            return
        current = resident.current
        current.measured = Measured(event.static, event.kv, event.prompt_cache, event.mlx_cache, event.peak)
        if current.shed_asked is not None:
            current.shed_asked, current.shed_done = None, True
        resident.recharge()

    def overhead(self, event: OverheadMeasured) -> None:
        """What is no resident takes of the budget."""
        budget = self.house.budget
        free = budget.budget_bytes - budget.charged_bytes - event.overhead_bytes
        budget.overhead_bytes = event.overhead_bytes + max(0, min(event.yielding_bytes, free))
        if event.baseline_bytes is not None:
            self.house.baseline_bytes = event.baseline_bytes

    def ask(self, event: GrowRequest) -> None:
        """A request needs more than the grant; ``grow`` looks at it at the step's end."""
        resident = self._serving(event.key, event.generation)
        if resident is None:
            return
        if event.bytes <= 0:
            resident.current.growth = None
            return
        if not resident.leases:
            self.house.count("growth of nothing leased")
            return
        before = resident.current.growth
        order = self.house.next_order() if before is None else before.order
        since = self.house.now if before is None else before.since
        resident.current.growth = Growth(event.bytes, event.request, order, since)

    # --- planning

    def grow(self) -> bool:
        """Grants what fits, oldest first; evicts idle models for what does not. True when something changed.

        1. No grant could ever hold it: it is denied, with the number.
        2. It fits beside what is earmarked for others: the grant grows.
        3. What is being torn down for it will do: wait.
        4. Idle models are evicted for it, never one that serves.
        5. Those too that themselves only wait for growth, and came later: their callers queue again. So two models whose
           requests each need the other's bytes do not wait for one another for ever.
        6. After ``fairness_wait_s`` leased residents are drained for it, as for the head of the queue. Else it stays deferred.
        """
        house, room = self.house, self.room
        if not house.open:
            return False
        if self._give_back():
            return True
        asking = [r for r in house.residents.values() if r.current.growth is not None]
        for resident in sorted(asking, key=lambda r: r.current.growth.order if r.current.growth else 0):
            growth = resident.current.growth
            assert growth is not None
            # 1.
            most = room.most_for(resident)
            if resident.charge + growth.bytes > most:
                resident.current.growth = None
                most_bytes = max(0, resident.current.grant + most - resident.charge)
                house.emit(DenyGrowth(resident.key, resident.generation, growth.request, most_bytes))
                return True
            # 2.
            claim = Claim("grow", resident.key)
            available = room.available(claim, resident)
            if growth.bytes <= available:
                resident.current.growth = None
                self._set_grant(resident, resident.current.grant + growth.bytes)
                return True
            # 3.
            growth.promised = True
            missing = growth.bytes - available - room.pending(claim)
            if missing <= 0:
                continue
            # 4.
            idle = room.idle(claim)
            chosen = victims(idle, missing, house.settings.policy)
            # 5.
            if chosen is None:
                waiting = [candidate(rival) for rival in asking if self._only_waits(rival, growth, claim)]
                chosen = victims([*idle, *waiting], missing, house.settings.policy)
            # 6.
            if chosen is None:
                if self._drain(resident, claim, missing):
                    return True
                growth.promised = claim in house.intents
                continue
            for key in chosen:
                victim = house.residents[key]
                if victim.state is State.UNLOADING:  # drained for it, and not sent yet
                    victim.evictions += 1
                    victim.send_teardown()
                    continue
                if not victim.leases:
                    victim.unload(Trigger.EVICT, Cause.EVICTED, claim)
                    continue
                for lease in list(victim.leases.values()):
                    self.workers.front.requeue(lease)
                victim.make_way(claim)
            return True
        return False

    def _drain(self, resident: ResidencyManager, claim: Claim, missing: int) -> bool:
        """Begins a fairness drain for its growth, where it is time and one would do."""
        house, growth = self.house, resident.current.growth
        wait = resident.infos[0].policy.fairness_wait_s
        if growth is None or claim in house.intents or house.now < growth.since + wait:
            return False
        older = [r.key for r in house.residents.values() if r.current.growth and r.current.growth.order <= growth.order]
        leased = [rival for rival in self.room.drainable() if rival.key not in older]
        drain = choose_drain(missing, self.room.idle(claim), leased, house.settings.policy)
        if drain is None:
            return False
        members = [house.residents[key] for key in (*drain.drain, *drain.hold)]
        fairness.begin(house, claim, members, wait)
        growth.promised = True
        return True

    def _only_waits(self, rival: ResidencyManager, growth: Growth, claim: Claim) -> bool:
        """It asked later than this growth, and none of its requests has begun in all of ``fairness_wait_s``.

        A drain with a deadline of its own, and one that cancels its leases, ends anyway; one for this growth is at its end.
        """
        since = self.house.now - rival.infos[0].policy.fairness_wait_s
        endless = rival.cause in (Cause.ADMIN, Cause.RELOAD, Cause.REMOVED) and not rival.aborting
        drained = rival.claim == claim or endless
        return (
            (rival.state is State.LOADED or (rival.state is State.DRAINING and drained))
            and not rival.pinned
            and rival.current.growth is not None
            and rival.current.growth.order > growth.order
            and all(not lease.admitted and lease.since <= since for lease in rival.leases.values())
        )

    def _give_back(self) -> bool:
        """What has grown beyond the grant of its load, and has no lease any more."""
        for resident in self.house.residents.values():
            if resident.state is not State.LOADED or resident.leases:
                continue
            current = resident.current
            least = max(current.loaded_grant, current.measured.beside_static)
            if current.grant > least:
                self._set_grant(resident, least)
                return True
        return False

    def _set_grant(self, resident: ResidencyManager, grant_bytes: int) -> None:
        resident.current.grant = grant_bytes
        resident.recharge()
        self.house.emit(SetGrant(resident.key, resident.generation, grant_bytes))

    def govern(self) -> bool:
        """Mends an overrun, one step at a time (see the module). True when something changed."""
        house = self.house
        if house.open:
            self._told = False
            for resident in house.residents.values():
                resident.current.shed_asked, resident.current.shed_done = None, False
            return False
        excess = -house.budget.available_bytes - self.room.torn_down()
        if excess <= 0:
            return False
        if self._shrink(excess):
            return True
        if self._shed(excess):
            return False  # an answer is due, or the time for it
        return self._evict() or self._tell()

    def _shrink(self, excess: int) -> bool:
        for resident in self._by_age(_SERVING):
            current = resident.current
            spare = min(excess, current.grant - max(resident.sizes.floor, current.measured.beside_static))
            if spare > 0:
                self._set_grant(resident, current.grant - spare)
                return True
        return False

    def _shed(self, excess: int) -> bool:
        """Asks whoever holds caches above its floor, once; True while an answer is due."""
        due = False
        for resident in self._by_age(_SERVING):
            current = resident.current
            above = max(current.grant, current.measured.beside_static) - resident.sizes.floor
            caches = min(excess, current.measured.caches, above)
            if caches > 0 and current.shed_asked is None and not current.shed_done:
                current.shed_asked = self.house.now
                self.house.emit(Shed(resident.key, resident.generation, caches))
            if current.shed_asked is not None and self.house.now < current.shed_asked + _SHED_ANSWER_S:
                due = True
        return due

    def _evict(self) -> bool:
        for resident in self._by_age((State.LOADED, State.LOADING)):
            if resident.evictable:
                resident.unload(Trigger.EVICT, Cause.EVICTED)
                return True
            if resident.yields:
                self.workers.yield_load(resident, Trigger.EVICT)
                return True
        return False

    def _tell(self) -> bool:
        if not self._told:
            self._told = True
            worst = max(self._by_age(_SERVING), key=lambda resident: resident.charge, default=None)
            if worst is not None:
                self.house.announce(worst, worst.state, "overrun")
        return False

    def _by_age(self, states: tuple[State, ...]) -> list[ResidencyManager]:
        residents = [r for r in self.house.residents.values() if r.state in states]
        return sorted(residents, key=lambda resident: (resident.last_used, resident.key))

    def _serving(self, key: str, generation: int) -> ResidencyManager | None:
        resident = self.house.residents.get(key)
        if resident is not None and resident.generation == generation:
            held = resident.state is State.UNLOADING and not resident.sent  # it may serve again
            if held or resident.state in _SERVING:
                return resident
        self.house.count("report of nothing loaded")
        return None
