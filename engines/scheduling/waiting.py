"""Who waits, and in which order: by priority, first come first served within one, and nobody for ever.

A row's place is its arrival plus a handicap of its class, fixed when it joins: a row of a better class overtakes those that
came at most the difference of the handicaps before it. So no row waits for more than those that came within its own
handicap after it, and no order has to be worked out again as time passes.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

__all__ = ["HANDICAP_S", "PRIORITIES", "Priority", "WaitingRows"]

Priority = Literal["interactive", "normal", "batch"]
PRIORITIES: tuple[Priority, ...] = ("interactive", "normal", "batch")

HANDICAP_S: dict[Priority, float] = {"interactive": 0.0, "normal": 15.0, "batch": 120.0}

T = TypeVar("T")


@dataclass(frozen=True, order=True)
class _Place:
    due: float  # seconds, on the clock of ``now``: arrival plus handicap
    turn: int  # rises with each row that comes, falls with each that is put back
    row_id: int


@dataclass
class _Entry(Generic[T]):
    place: _Place
    priority: Priority
    item: T


class WaitingRows(Generic[T]):
    """An ordered set of rows by id, each with what the caller keeps of it. Iterates over the items, the next one first.

    ``now`` is in seconds of a monotonic clock, the same in every call.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry[T]] = {}
        self._order: list[_Place] = []  # sorted; one an entry
        self._last = 0
        self._first = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, row_id: int) -> bool:
        return row_id in self._entries

    def __iter__(self) -> Iterator[T]:
        """Over the items as they were when the iteration began, so that rows may leave meanwhile."""
        return iter([self._entries[place.row_id].item for place in self._order])

    def ids(self) -> list[int]:
        return [place.row_id for place in self._order]

    def get(self, row_id: int) -> T | None:
        entry = self._entries.get(row_id)
        return None if entry is None else entry.item

    def add(self, row_id: int, item: T, priority: Priority, now: float) -> None:
        """At the end of its class. Raises ValueError where the id waits already."""
        self._last += 1
        self._insert(row_id, item, priority, _Place(now + HANDICAP_S[priority], self._last, row_id))

    def put_back(self, row_id: int, item: T, priority: Priority, now: float) -> None:
        """At the front of its class: a row that had begun and was preempted. Of two put back, the later one stands first."""
        ahead = (entry.place.due for entry in self._entries.values() if entry.priority == priority)
        self._first -= 1
        due = min(ahead, default=now + HANDICAP_S[priority])
        self._insert(row_id, item, priority, _Place(min(due, now + HANDICAP_S[priority]), self._first, row_id))

    def replace(self, row_id: int, item: T) -> None:
        """Another item at the same place. Raises KeyError where the id does not wait."""
        self._entries[row_id].item = item

    def remove(self, row_id: int) -> T | None:
        """Takes a row out; None where it does not wait."""
        entry = self._entries.pop(row_id, None)
        if entry is None:
            return None
        self._order.remove(entry.place)
        return entry.item

    def clear(self) -> None:
        self._entries.clear()
        self._order.clear()

    def by_priority(self) -> dict[Priority, int]:
        """How many rows of each class wait."""
        counts = Counter(entry.priority for entry in self._entries.values())
        return {priority: counts[priority] for priority in PRIORITIES}

    def _insert(self, row_id: int, item: T, priority: Priority, place: _Place) -> None:
        if row_id in self._entries:
            raise ValueError(f"row {row_id} waits already")
        self._entries[row_id] = _Entry(place, priority, item)
        insort(self._order, place)
