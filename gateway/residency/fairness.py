"""A fairness drain: the head of the queue, or a request that needs a larger grant, has waited long enough, so leased residents
finish their leases for it.

Every member has left LOADED in the step that decided it: the leased ones are DRAINING(fairness), the idle ones UNLOADING with
their teardown not yet sent. All of it is revocable until then: when the rival is gone or finds room otherwise, when a
member is pinned, unloaded or dies, or at the deadline, they return to LOADED.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.residency.queue import Claim
from gateway.residency.states import Cause, State, Trigger
from gateway.residency.timers import Timer, TimerKind

if TYPE_CHECKING:
    from gateway.residency.house import House
    from gateway.residency.resident import ResidencyManager

__all__ = ["Intent", "begin", "cancel", "expire", "revocable", "revoke"]


@dataclass(frozen=True, slots=True)
class Intent:
    """``rival`` is who waits, ``members`` are the keys of the victims; none is added later."""

    rival: Claim
    members: tuple[str, ...]
    immunity_s: float  # how long a drained victim is left alone when the drain fails


def revocable(resident: ResidencyManager) -> bool:
    """A member of an intent that can still be taken back."""
    if resident.state is State.UNLOADING:
        return resident.cause is Cause.FAIRNESS and not resident.sent
    return resident.state is State.DRAINING and resident.cause is Cause.FAIRNESS


def begin(house: House, rival: Claim, members: Collection[ResidencyManager], immunity_s: float) -> None:
    """All of them leave LOADED now; the drain fails after the shortest ``drain_timeout_s`` of the leased ones."""
    timeout = min(member.policy.drain_timeout_s for member in members if member.leases)
    house.intents[rival] = Intent(rival, tuple(member.key for member in members), immunity_s)
    for member in members:
        member.hold(rival)
    house.timers.set(Timer(TimerKind.INTENT, rival), house.now + timeout)


def cancel(house: House, rival: Claim, trigger: Trigger = Trigger.INTENT_CANCELLED, keep: Collection[str] = ()) -> bool:
    """Takes the intent of this rival back; members in ``keep`` stay as they are. False when there is none.

    ``trigger`` is that of the members that are DRAINING.
    """
    intent = house.intents.pop(rival, None)
    if intent is None:
        return False
    house.timers.cancel(Timer(TimerKind.INTENT, rival))
    for key in intent.members:
        member = house.residents.get(key)
        if member is not None and key not in keep and revocable(member):
            member.resume(trigger if member.state is State.DRAINING else Trigger.INTENT_CANCELLED)
    return True


def expire(house: House, rival: Claim) -> None:
    """The drain has failed: its victims serve again, the drained ones immune for a while; the rival keeps its place."""
    intent = house.intents[rival]
    for key in intent.members:
        member = house.residents[key]
        if member.state is State.DRAINING and revocable(member):
            member.immune_until = house.now + intent.immunity_s
            house.timers.set(Timer(TimerKind.IMMUNITY, key), member.immune_until)
    cancel(house, rival, Trigger.DRAIN_DEADLINE)


def revoke(house: House, resident: ResidencyManager, trigger: Trigger | None = None) -> None:
    """``resident`` is no victim any more, so the whole intent ends: the others return to LOADED.

    With ``trigger`` it returns itself (a pin); without, the caller takes it elsewhere (an unload, a reload).
    """
    for intent in list(house.intents.values()):
        if resident.key in intent.members and revocable(resident):
            if trigger is not None:
                resident.resume(trigger)
            cancel(house, intent.rival, keep=(resident.key,))
            return
