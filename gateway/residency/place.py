"""Where a caller stands in the queue.

Each priority is a head start: a caller is placed as though it had come ``LAG_S`` later than it did. An ``interactive`` one so
passes ``batch`` ones that came up to half a minute before it, and none that has waited longer: whoever waits long enough is
before everybody who comes, of whatever priority.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

from engines.wire import Priority

__all__ = ["LAG_S", "Place"]

LAG_S: Final = MappingProxyType({"interactive": 0.0, "normal": 10.0, "batch": 30.0})
"""Seconds; well below ``queue_timeout_s``, so that waiting still leads somewhere."""


class Place(NamedTuple):
    """The smaller one is served first. ``order`` counts arrivals, and settles who came in the same moment."""

    due: float
    order: int

    @classmethod
    def of(cls, priority: Priority, now: float, order: int) -> Place:
        """Of a caller that comes now."""
        return cls(now + LAG_S[priority], order)
