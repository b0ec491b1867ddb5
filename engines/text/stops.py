"""Stop strings, matched over text and not over tokens, so that any token split gives the same answer.

The earliest match wins: the stop string that is complete first as the characters arrive, and of those complete at the same
character the longest. What may still become a match is held back, so nothing of a stop string ever leaks.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopMatcher"]


class StopMatcher:
    """One row's position between its stop strings.

    Args:
        stops: the stop strings, none empty; there may be none at all.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest_prefix = max((len(stop) for stop in stops), default=1) - 1
        self._held = ""
        self.matched: str | None = None  # the stop string that ended the text

    def push(self, text: str) -> str:
        """Takes the next text; answers what is now certain to stand before any stop string. Nothing follows a match."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        self._held += text
        ends = [(at + len(stop), -len(stop), stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if ends:
            end, _, self.matched = min(ends)
            return self._release(end - len(self.matched), drop_rest=True)
        return self._release(len(self._held) - self._held_back())

    def flush(self) -> str:
        """The text has ended: what was held back is text after all."""
        return self._release(len(self._held))

    def _release(self, count: int, *, drop_rest: bool = False) -> str:
        released, rest = self._held[:count], self._held[count:]
        self._held = "" if drop_rest else rest
        return released

    def _held_back(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        for length in range(min(self._longest_prefix, len(self._held)), 0, -1):
            end = self._held[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
