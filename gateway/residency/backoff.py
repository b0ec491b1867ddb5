"""How long a resident that failed is left alone."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backoff"]

WINDOW_S = 300.0  # failures further apart than this do not add up
LONGEST_S = 60.0


@dataclass(slots=True)
class Backoff:
    """0 for the first death in five minutes of a worker that had served somebody; else 1, 2, 4 … 60 s.

    One writer: the resident it belongs to.
    """

    until: float = 0.0
    count: int = 0  # failures in a row that cost a wait
    _last_failure: float | None = None
    _last_free: float | None = None

    def record(self, now: float, *, served: bool) -> float:
        """A load failed or a worker died; returns the wait in seconds. ``served``: it had begun at least one request."""
        if self._last_failure is not None and now - self._last_failure > WINDOW_S:
            self.count = 0
        self._last_failure = now
        if served and (self._last_free is None or now - self._last_free > WINDOW_S):
            self._last_free = now
            self.until = now
            return 0.0
        self.count += 1
        wait = min(2.0 ** (self.count - 1), LONGEST_S)
        self.until = now + wait
        return wait

    def rest(self, now: float) -> float:
        """Seconds still to wait."""
        return max(0.0, self.until - now)

    def clear(self) -> None:
        """An operator says to try again."""
        self.until = 0.0
        self.count = 0
        self._last_failure = None
