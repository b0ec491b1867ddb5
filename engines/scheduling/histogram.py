"""Distributions of times, counted in fixed buckets as Prometheus has them: cheap to keep, small on the wire."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

import msgspec

__all__ = ["BOUNDS_S", "Histogram", "Recorder"]

BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.4, 0.6),
    *(1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0),
)
"""Upper bounds of the buckets in seconds, each included; a last bucket without a bound follows."""


class Histogram(msgspec.Struct, frozen=True, array_like=True):
    """What was seen since the worker began.

    ``counts`` has one entry a bound: how many times were at most so long, those of the buckets before included. ``sum_s`` is
    in seconds; ``count`` is of all, also of those beyond the last bound.
    """

    counts: tuple[int, ...] = (0,) * len(BOUNDS_S)
    sum_s: float = 0.0
    count: int = 0


class Recorder:
    """Counts times as they come; under a microsecond each."""

    __slots__ = ("_buckets", "_sum_s")

    def __init__(self) -> None:
        self._buckets = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, seconds: float) -> None:
        """One more time. A negative one, which no monotonic clock gives, counts as 0."""
        seconds = max(seconds, 0.0)
        self._buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def read(self) -> Histogram:
        """What was counted so far."""
        running = (*accumulate(self._buckets),)
        return Histogram(running[:-1], self._sum_s, running[-1])
