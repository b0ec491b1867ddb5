"""The core's deadlines. The shell only ever knows the next one."""

from __future__ import annotations

import heapq
from enum import Enum
from typing import NamedTuple

from gateway.residency.queue import Claim

__all__ = ["Timer", "TimerKind", "Timers"]


class TimerKind(Enum):
    """What is due. ``subject`` is a resident key, a claim, a waiter or an admin caller."""

    LOAD = "load"  # key: no progress for load_timeout_s
    ABANDON = "abandon"  # key: the grace of a load nobody waits for is over
    IDLE = "idle"  # key: idle for its TTL
    DRAIN = "drain"  # key: a reload, removal or shutdown drain has lasted drain_timeout_s, or the grace
    INTENT = "intent"  # claim of the rival: its fairness drain has failed
    FAIRNESS = "fairness"  # key of the rival: it has waited fairness_wait_s at the head
    IMMUNITY = "immunity"  # key: it may be drained for fairness again
    UNLOAD = "unload"  # key: its worker does not end
    WAITER = "waiter"  # waiter: queued for queue_timeout_s
    ADMIN_LOAD = "admin load"  # admin: its load has been queued for queue_timeout_s
    ADMIN_UNLOAD = "admin unload"  # admin: the deadline it gave
    SHUTDOWN = "shutdown"  # the grace is over


class Timer(NamedTuple):
    """A deadline's name; setting it again moves it."""

    kind: TimerKind
    subject: str | int | Claim = ""


class Timers:
    """Deadlines by name, and the earliest of them. Cancelled ones leave the heap when they come up."""

    def __init__(self) -> None:
        self._due: dict[Timer, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = 0

    def set(self, timer: Timer, at: float) -> None:
        """``timer`` is due at ``at``, and at no other time."""
        self._order += 1
        self._due[timer] = (at, self._order)
        heapq.heappush(self._heap, (at, self._order, timer))
        if (
            len(self._heap) > 2 * len(self._due) + 64
        ):  # mostly moved or cancelled ones: far in the future, they would pile up
            self._heap = [(due, order, name) for name, (due, order) in self._due.items()]
            heapq.heapify(self._heap)

    def cancel(self, timer: Timer) -> None:
        """``timer`` is not due any more. Nothing happens when it was not set."""
        self._due.pop(timer, None)

    def at(self, timer: Timer) -> float | None:
        """When it is due; None when it is not set."""
        due = self._due.get(timer)
        return None if due is None else due[0]

    def next(self) -> float | None:
        """When the earliest is due."""
        while self._heap:
            at, order, timer = self._heap[0]
            if self._due.get(timer) == (at, order):
                return at
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now: float) -> Timer | None:
        """Takes the earliest timer that is due, if one is."""
        at = self.next()
        if at is None or at > now:
            return None
        _, _, timer = heapq.heappop(self._heap)
        del self._due[timer]
        return timer

    @property
    def active(self) -> frozenset[Timer]:
        """All that are set."""
        return frozenset(self._due)
