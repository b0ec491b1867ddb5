"""How room is found for a load: a pure function of numbers.

The decision, numbered as the code is:

1. It could never fit: more than the whole budget → refuse (``model_too_large``); more than the pinned residents leave →
   refuse (``no_room_beside_pinned``). Nobody is evicted for it.
2. One row of KV fits beside what is loaded → start, with the largest grant up to the full one that fits.
3. It will fit when the teardowns under way have ended → wait for them.
4. Unloading idle models makes it fit → evict the set that the policy chooses.
5. Not with a whole row, but with a shorter one → evict every idle model, wait for what is under way, then start with what
   there is.
6. No set exists → wait at the head of the queue, and after ``fairness_wait_s`` drain (:func:`choose_drain`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.errors import ModelTooLarge, NoRoom, NoRoomBesidePinned
from gateway.registry.values import format_bytes
from gateway.residency.eviction import Candidate, victims
from gateway.residency.sizes import Sizes

__all__ = ["Blocked", "Decision", "Drain", "Evict", "Refuse", "Start", "View", "Wait", "choose_drain", "decide"]


@dataclass(frozen=True, slots=True)
class View:
    """What the decision looks at. ``available`` is free and not earmarked for others; ``pending`` is being torn down and
    promised to nobody else; ``pins`` are pinned residents LOADING or LOADED, with their charges."""

    model: str
    sizes: Sizes
    total: int
    available: int
    pending: int = 0
    pins: tuple[tuple[str, int], ...] = ()
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Load it now, with this KV grant."""

    grant: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Bytes that are being freed will do; ``needed`` of them are promised to it."""

    needed: int


@dataclass(frozen=True, slots=True)
class Evict:
    """Unload these; then it fits. ``needed`` is what it will be charged at least."""

    keys: tuple[str, ...]
    needed: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """No set of idle models frees ``needed`` bytes."""

    needed: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """It can never fit."""

    error: NoRoom


Decision = Start | Wait | Evict | Blocked | Refuse


@dataclass(frozen=True, slots=True)
class Drain:
    """``drain`` are leased and finish their leases first; ``hold`` are idle and go with them."""

    drain: tuple[str, ...]
    hold: tuple[str, ...]


def refusal(view: View) -> NoRoom | None:
    """Step 1: why it could never be loaded, if so."""
    least = view.sizes.least
    pinned = sum(charge for _, charge in view.pins)
    if least > view.total:
        names = ", ".join(name for name, _ in view.pins)
        beside = f"; pinned: {names} with {format_bytes(pinned)} ({pinned} bytes)" if names else ""
        return ModelTooLarge(
            f"model {view.model!r} needs at least {format_bytes(least)} ({least} bytes); "
            f"the whole budget is {format_bytes(view.total)} ({view.total} bytes){beside}",
            param="model",
        )
    if least > view.total - pinned:
        pins = ", ".join(f"{name} ({format_bytes(charge)})" for name, charge in view.pins)
        return NoRoomBesidePinned(
            f"model {view.model!r} needs at least {format_bytes(least)} ({least} bytes); the pinned {pins} leave "
            f"{view.total - pinned} of {view.total} bytes; unpin one to make room",
            param="model",
        )
    return None


def one_row(view: View) -> int:
    """Bytes of the model with one row of KV, or with what the pins leave where that is less."""
    sizes = view.sizes
    ever = view.total - sum(charge for _, charge in view.pins)
    return max(sizes.least, min(sizes.static + sizes.row, ever))


def decide(view: View, policy: str = "lru") -> Decision:
    """The next step for a model at the head of the queue; see the numbered list above."""
    # 1.
    error = refusal(view)
    if error is not None:
        return Refuse(error)
    sizes = view.sizes
    # 2.
    needed = one_row(view)
    if view.available >= needed:
        return Start(min(sizes.full, view.available - sizes.static))
    # 3.
    soon = view.available + view.pending
    if soon >= needed:
        return Wait(needed)
    # 4.
    chosen = victims(view.candidates, needed - soon, policy)
    if chosen is not None:
        return Evict(chosen, needed)
    # 5.
    reachable = soon + sum(candidate.bytes for candidate in view.candidates)
    if reachable >= sizes.least:
        if view.candidates:
            return Evict(tuple(candidate.key for candidate in view.candidates), reachable)
        if view.pending:
            return Wait(reachable)
        return Start(view.available - sizes.static)
    # 6.
    return Blocked(needed)


def fits_beside(view: View) -> int | None:
    """The grant with which it could overtake: it fits now, without eviction and without shrinking below one row."""
    if refusal(view) is None and view.available >= one_row(view):
        return min(view.sizes.full, view.available - view.sizes.static)
    return None


def choose_drain(
    needed: int, idle: Sequence[Candidate], leased: Sequence[Candidate], policy: str = "lru"
) -> Drain | None:
    """Whom to drain so that ``needed`` bytes can be freed; None when even all together would not do.

    1. Of the leased: fewest leases first, then least recently used.
    2. The first one that makes a set with the idle ones; the policy chooses the set.
    3. Else as many as it takes, in that order.
    """
    # 1.
    order = sorted(leased, key=lambda candidate: (candidate.leases, candidate.last_used, candidate.key))
    # 2.
    groups = [[candidate] for candidate in order]
    # 3.
    groups += [order[:count] for count in range(2, len(order) + 1)]
    for group in groups:
        chosen = victims([*idle, *group], needed, policy)
        if chosen is not None:
            names = {candidate.key for candidate in group}
            return Drain(
                drain=tuple(key for key in chosen if key in names),
                hold=tuple(key for key in chosen if key not in names),
            )
    return None
