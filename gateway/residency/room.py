"""Whose the free bytes are: what is earmarked, what is being freed and for whom, who may be unloaded.

Queries only; every number is worked out from the house when it is asked for.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.residency.eviction import Candidate
from gateway.residency.fairness import revocable
from gateway.residency.house import House
from gateway.residency.plan import View
from gateway.residency.queue import Claim
from gateway.residency.resident import ResidencyManager
from gateway.residency.states import State

__all__ = ["Room"]


class Room:
    """The bytes of a house."""

    def __init__(self, house: House) -> None:
        self.house = house

    # --- what is being freed

    def torn_down(self) -> int:
        """Charges of all whose teardown is sent."""
        return sum(r.charge for r in self.house.residents.values() if r.state is State.UNLOADING and r.sent)

    def pending(self, claim: Claim, *, head: bool | None = None) -> int:
        """Of those, what is freed for this claim: was evicted for it, or for nobody who still waits and it is the head.

        ``head``: as though it were; None: as it is.
        """
        return sum(r.charge for r in self._going_for(claim, head) if r.sent)

    def _going_for(self, claim: Claim, head: bool | None = None) -> list[ResidencyManager]:
        if head is None:
            head = claim.kind == "load" and claim.key == self.house.queue.head
        return [
            r
            for r in self.house.residents.values()
            if r.state is State.UNLOADING and (r.claim == claim or (head and r.sent and not self._alive(r.claim)))
        ]

    def _alive(self, claim: Claim | None) -> bool:
        if claim is None:
            return False
        if claim.kind == "load":
            return self.house.queue.get(claim.key) is not None
        resident = self.house.residents.get(claim.key)
        return resident is not None and resident.current.growth is not None

    # --- what is free

    def available(self, claim: Claim, resident: ResidencyManager) -> int:
        """Free bytes that are earmarked for nobody else; for a real model no more than the device really has free."""
        free = self.house.budget.available_bytes - sum(
            self._earmark(other)
            for other in self._claims()
            if other != claim and not (claim.kind == "grow" and self._waits_for(other, resident))
        )
        if not resident.simulated:
            really_free = self.house.device_free()
            if really_free is not None:
                free = min(free, really_free)
        return max(0, free)

    def _waits_for(self, claim: Claim, resident: ResidencyManager) -> bool:
        """The head of the queue gets nowhere before leases end: no plan counts on its bytes, or one that drains ``resident``.

        To keep them from a request under way would make each wait for the other.
        """
        entry = self.house.queue.get(claim.key) if claim.kind == "load" else None
        return entry is not None and (not entry.promised or resident.claim == claim)

    def _claims(self) -> list[Claim]:
        """Only the head of the queue has an earmark, and whoever grows."""
        growing = (r for r in self.house.residents.values() if r.current.growth is not None)
        claims = [Claim("grow", resident.key) for resident in growing]
        return claims if self.house.queue.head is None else [*claims, Claim("load", self.house.queue.head)]

    def _earmark(self, claim: Claim) -> int:
        """Free bytes that are kept for this claim: what its plan counts on, and what freed while it was the head."""
        if claim.kind == "grow":
            growth = self.house.residents[claim.key].current.growth
            if growth is None or not growth.promised:
                return 0
            return max(0, growth.bytes - self._coming(claim))
        entry = self.house.queue.get(claim.key)
        if entry is None:
            return 0
        counted_on = max(0, entry.needed_bytes - self._coming(claim)) if entry.promised else 0
        return max(counted_on, min(entry.needed_bytes, entry.freed_bytes))

    def _coming(self, claim: Claim) -> int:
        """What will be freed for it, members of its fairness drain included."""
        draining = (r for r in self.house.residents.values() if r.state is State.DRAINING and r.claim == claim)
        return sum(r.charge for r in self._going_for(claim)) + sum(r.charge for r in draining)

    # --- who may be unloaded

    def idle(self, claim: Claim) -> list[Candidate]:
        """Idle unpinned residents, and those that are held for this claim and not sent yet."""
        return [
            candidate(r)
            for r in self.house.residents.values()
            if r.charge and (r.evictable or (r.state is State.UNLOADING and r.claim == claim and revocable(r)))
        ]

    def drainable(self) -> list[Candidate]:
        """Leased unpinned residents whose last failed drain is long enough ago."""
        return [
            candidate(r)
            for r in self.house.residents.values()
            if r.state is State.LOADED and r.leases and not r.pinned and r.immune_until <= self.house.now
        ]

    def pins(self, beside: ResidencyManager) -> tuple[tuple[str, int], ...]:
        """Pinned residents LOADING or LOADED, with their charges."""
        return tuple(
            (r.name, r.charge)
            for r in self.house.residents.values()
            if r is not beside and r.state in (State.LOADING, State.LOADED) and r.pinned
        )

    def most_for(self, resident: ResidencyManager) -> int:
        """The largest charge it could ever have."""
        return self.house.budget.total_bytes - sum(charge for _, charge in self.pins(resident))

    def outlook(self, key: str) -> View:
        """What fits now and what could ever fit: enough to refuse a load, or to overtake."""
        resident = self.house.residents[key]
        return View(
            model=resident.name,
            sizes=resident.sizes,
            total=self.house.budget.total_bytes,
            available=self.available(Claim("load", key), resident),
            pins=self.pins(resident),
        )

    def view(self, key: str, *, head: bool | None = None) -> View:
        """All that a plan for a load of this resident key looks at."""
        claim = Claim("load", key)
        return replace(self.outlook(key), pending=self.pending(claim, head=head), candidates=tuple(self.idle(claim)))


def candidate(resident: ResidencyManager) -> Candidate:
    """The resident as an eviction policy sees it."""
    return Candidate(resident.key, resident.charge, resident.last_used, resident.policy.priority, len(resident.leases))
