"""The queue for room: one entry a resident key, by the place of its first caller (``place.py``).

Entries with callers stand before those that only an operator or a preload wants. The first entry that can be planned is the
*head*: it may evict, and bytes that free while it waits are earmarked for it. A later one may overtake only if it fits
without eviction and without earmarked bytes (``planner.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gateway.residency.callers import AdminCaller, Waiter
from gateway.residency.place import Place
from gateway.residency.values import WaiterId

__all__ = ["Claim", "Entry", "LoadQueue"]


class Claim(NamedTuple):
    """For whom bytes are being freed: the load or the growth of a resident key."""

    kind: Literal["load", "grow"]
    key: str


@dataclass(slots=True, eq=False)
class Entry:
    """Everybody who waits for one resident key to be loaded, or to be loaded again."""

    key: str
    place: Place  # the best of its callers; it stays when that one leaves
    waiters: dict[WaiterId, Waiter] = field(default_factory=dict)
    admins: list[AdminCaller] = field(default_factory=list)
    preload: bool = False
    blocked_since: float | None = None  # when, at the head, no set of idle models freed enough for the first time
    needed_bytes: int = 0  # what it would be charged, as last planned
    promised: bool = False  # a plan counts on bytes that are free now or being torn down
    freed_bytes: int = 0  # freed while it waited at the head

    @property
    def wanted(self) -> bool:
        """False: nobody is left, and the entry goes."""
        return bool(self.waiters or self.admins or self.preload)


class LoadQueue:
    """Entries by resident key. One writer: the residency core."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self.head: str | None = None  # as of the last planning; bytes that free go to it

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """In order: callers first, then operators and preloads; each by place."""
        return iter(sorted(self._entries.values(), key=lambda entry: (not entry.waiters, entry.place)))

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def open(self, key: str, place: Place) -> Entry:
        """The entry of this key, at this place or an earlier one."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(key, place)
        entry.place = min(entry.place, place)
        return entry

    def add(self, waiter: Waiter) -> None:
        """Queues a caller."""
        self.open(waiter.key, waiter.place).waiters[waiter.id] = waiter

    def remove(self, waiter: Waiter) -> bool:
        """Dequeues a caller; False when it was not queued."""
        entry = self._entries.get(waiter.key)
        if entry is None or entry.waiters.pop(waiter.id, None) is None:
            return False
        self.prune(entry)
        return True

    def prune(self, entry: Entry) -> None:
        """Drops the entry if nobody wants it; its earmark lapses with it."""
        if not entry.wanted:
            self.drop(entry.key)

    def drop(self, key: str) -> None:
        """Takes the entry out, whoever waits in it."""
        self._entries.pop(key, None)
        if self.head == key:
            self.head = None
