"""How fast requests end, and when a client that finds a full queue should come back.

Only time in which something is served counts, so that an hour without requests does not make the next rush look slow. The
present moment counts too: while nothing ends, the rate falls.
"""

from __future__ import annotations

from collections import deque

__all__ = ["LONGEST_RETRY_S", "SHORTEST_RETRY_S", "ServiceRate", "retry_after_s"]

SHORTEST_RETRY_S = 2.0
LONGEST_RETRY_S = 60.0
_REMEMBERED = 32  # ends; more would follow a change of load too late


class ServiceRate:
    """Counts what one resident has served, or all of them. ``now`` never goes back; every method is O(1)."""

    __slots__ = ("_busy_s", "_ends", "_since", "_under_way")

    def __init__(self) -> None:
        self._under_way = 0
        self._since = 0.0  # when the present busy time began; only with something under way
        self._busy_s = 0.0  # of busy times that are over
        self._ends = deque(
            [0.0], maxlen=_REMEMBERED + 1
        )  # on the clock of busy time; the first is where counting begins

    def begin(self, now: float) -> None:
        """One more is under way."""
        if self._under_way == 0:
            self._since = now
        self._under_way += 1

    def end(self, now: float, *, served: bool) -> None:
        """One less. ``served`` False: it was never begun, and says nothing about how long serving takes."""
        if served:
            self._ends.append(self._clock(now))
        self._under_way -= 1
        if self._under_way == 0:
            self._busy_s += now - self._since

    def per_second(self, now: float) -> float | None:
        """Ends a second of busy time, of the last ones; None before the first."""
        elapsed = self._clock(now) - self._ends[0]
        return (len(self._ends) - 1) / elapsed if len(self._ends) > 1 and elapsed > 0 else None

    def _clock(self, now: float) -> float:
        return self._busy_s + (now - self._since if self._under_way else 0.0)


def retry_after_s(waiting: int, per_second: float | None, load_s: float = 0.0) -> float:
    """When those who wait now will have been served: ``load_s + waiting / rate``, within 2 to 60 seconds.

    ``load_s`` is what a load has still to take before anybody is served. Without a rate only that is known.
    """
    serving_s = 0.0 if per_second is None else waiting / per_second
    return min(max(load_s + serving_s, SHORTEST_RETRY_S), LONGEST_RETRY_S)
