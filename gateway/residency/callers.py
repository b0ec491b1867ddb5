"""Who waits for a model and who holds it: the core's own records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.residency.place import Place
from gateway.residency.values import AdminId, LeaseId, UnloadMode, WaiterId

__all__ = ["AdminCaller", "LeaseRecord", "UnloadCaller", "Waiter", "in_turn"]


@dataclass(slots=True, eq=False)
class Waiter:
    """A caller of ``acquire``, from its request until its lease has ended.

    It is in exactly one place: in a queue entry, among the joiners of a load, or holding ``lease``.
    """

    id: WaiterId
    model: str
    key: str  # resident key; follows the registry
    client: str
    route: str
    place: Place  # kept when it is requeued
    since: float  # when it asked
    lease: LeaseId | None = None


def in_turn(waiters: Iterable[Waiter]) -> list[Waiter]:
    """Whoever is to be served first comes first."""
    return sorted(waiters, key=lambda waiter: waiter.place)


@dataclass(slots=True, eq=False)
class LeaseRecord:
    """A granted lease. ``admitted``: its request's prefill began, so it is never replayed."""

    id: LeaseId
    waiter: Waiter
    key: str
    generation: int
    since: float
    admitted: bool = False


@dataclass(frozen=True, slots=True)
class AdminCaller:
    """Waits for the answer to a load. Whether it is still there is the shell's business."""

    id: AdminId
    model: str


@dataclass(slots=True, eq=False)
class UnloadCaller:
    """Waits for the answer to an unload; ``waited_for`` grows no more once the drain has begun."""

    id: AdminId
    model: str
    mode: UnloadMode
    waited_for: tuple[LeaseId, ...] = field(default=())
