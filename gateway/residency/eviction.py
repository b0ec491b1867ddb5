"""Which residents to unload so that enough bytes are freed: pure functions that take numbers and return keys.

A policy is a function of candidates and bytes; :data:`POLICIES` names them for ``memory.policy``. Another policy is one more
function and one more entry there. Candidates are those that *may* go (idle, unpinned, unprotected); who may is the caller's
business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

__all__ = ["POLICIES", "Candidate", "Policy", "victims"]

_SEARCH_LIMIT = 20_000
"""Sets tried for the least bytes. Count and age are exact whatever the number; of more sets than this the best one seen is
taken, so that a step stays within a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A resident that may be unloaded. ``bytes`` is what its release frees, ``last_used`` the time of its last use."""

    key: str
    bytes: int
    last_used: float
    priority: int = 1  # 0 batch, 1 normal, 2 interactive
    leases: int = 0  # only a fairness drain looks at leased ones


Policy = Callable[[Sequence[Candidate], int], tuple[str, ...] | None]
"""(candidates, bytes needed) → keys to unload, or None when no set of them frees enough."""


def victims(candidates: Sequence[Candidate], needed: int, policy: str = "lru") -> tuple[str, ...] | None:
    """The keys to unload so that at least ``needed`` bytes are freed; None when not even all of them would do.

    Nothing needed is an empty set. KeyError for a policy that does not exist.
    """
    choose = POLICIES[policy]
    if needed <= 0:
        return ()
    if sum(candidate.bytes for candidate in candidates) < needed:
        return None
    return choose(candidates, needed)


def least_recently_used(candidates: Sequence[Candidate], needed: int) -> tuple[str, ...] | None:
    """Fewest models; then the set whose most recently used member is oldest; then least bytes."""
    by_age = sorted(candidates, key=lambda candidate: (candidate.last_used, candidate.key))
    count = _fewest(by_age, needed)
    if count is None:
        return None
    for end in range(count, len(by_age) + 1):
        oldest = by_age[:end]
        if _largest_sum(oldest, count) >= needed:
            # Candidates of the same age as the last one are equals: they take part in the search for the least bytes.
            while end < len(by_age) and by_age[end].last_used == oldest[-1].last_used:
                oldest.append(by_age[end])
                end += 1
            return _least_bytes(oldest, count, needed)
    return None


def largest(candidates: Sequence[Candidate], needed: int) -> tuple[str, ...] | None:
    """The largest first, until enough is free; of equals the least recently used."""
    chosen: list[str] = []
    for candidate in sorted(candidates, key=lambda candidate: (-candidate.bytes, candidate.last_used, candidate.key)):
        chosen.append(candidate.key)
        needed -= candidate.bytes
        if needed <= 0:
            return tuple(chosen)
    return None


def priority(candidates: Sequence[Candidate], needed: int) -> tuple[str, ...] | None:
    """Nothing of a higher priority goes while lower ones suffice; within that, the rule of lru."""
    for highest in sorted({candidate.priority for candidate in candidates}):
        chosen = least_recently_used([c for c in candidates if c.priority <= highest], needed)
        if chosen is not None:
            return chosen
    return None


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {"lru": least_recently_used, "largest": largest, "priority": priority},
)


def _fewest(candidates: Sequence[Candidate], needed: int) -> int | None:
    """How many of the largest it takes."""
    for count, candidate in enumerate(sorted(candidates, key=lambda c: -c.bytes), start=1):
        needed -= candidate.bytes
        if needed <= 0:
            return count
    return None


def _largest_sum(candidates: Sequence[Candidate], count: int) -> int:
    return sum(sorted((candidate.bytes for candidate in candidates), reverse=True)[:count])


def _least_bytes(candidates: Sequence[Candidate], count: int, needed: int) -> tuple[str, ...]:
    """The ``count`` candidates that free at least ``needed`` with the fewest bytes; such a set exists.

    Depth first over candidates in falling size, cut where the largest of the rest would not free enough or the smallest
    would free no less than the best set so far.
    """
    ordered = sorted(candidates, key=lambda candidate: (-candidate.bytes, candidate.last_used, candidate.key))
    total = len(ordered)
    sums = [0, *accumulate(candidate.bytes for candidate in ordered)]  # sums[j] - sums[i]: bytes of ordered[i:j]
    best: tuple[int, ...] = tuple(range(count))
    best_bytes = sums[count]
    tried = 0
    stack: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
    while stack and tried < _SEARCH_LIMIT:
        start, freed, chosen = stack.pop()
        tried += 1
        missing = count - len(chosen)
        if missing == 0:
            if needed <= freed < best_bytes:
                best, best_bytes = chosen, freed
            continue
        if total - start < missing or freed + sums[start + missing] - sums[start] < needed:
            continue
        if freed + sums[total] - sums[total - missing] >= best_bytes:
            continue
        stack.append((start + 1, freed, chosen))
        stack.append((start + 1, freed + ordered[start].bytes, (*chosen, start)))
    members = sorted((ordered[index] for index in best), key=lambda candidate: (candidate.last_used, candidate.key))
    return tuple(candidate.key for candidate in members)
