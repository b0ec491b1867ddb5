"""Rows that wait for memory, and since when: deferred, never failed.

Their wait is no wait for pacing, which must not be charged with it (``Pacer.decoded``). Past the ceiling a row is decided by
what rows hold now instead of what they may grow to: ``KvAdmission.decide`` with those lengths, one row a tick. Who runs is
then preempted by what it holds as well, or the row would go at once.
"""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["DeferredRows"]


class DeferredRows:
    """The ids of deferred rows. ``ceiling_s``: seconds, of ``SchedulingSettings.defer_ceiling_s``."""

    def __init__(self, ceiling_s: float) -> None:
        self._ceiling_s = ceiling_s
        self._since: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, row_id: int) -> bool:
        return row_id in self._since

    @property
    def ids(self) -> Collection[int]:
        return self._since.keys()

    def update(self, row_ids: Collection[int], now: float) -> None:
        """These are deferred now, and no others. A row keeps the time since which it has been, without a break."""
        self._since = {row_id: self._since.get(row_id, now) for row_id in row_ids}

    def waited_s(self, row_id: int, now: float) -> float:
        """Seconds since it was deferred; 0 where it is not."""
        return now - self._since.get(row_id, now)

    def overdue(self, row_id: int, now: float) -> bool:
        """Whether it has been deferred for the ceiling or longer."""
        return row_id in self._since and self.waited_s(row_id, now) >= self._ceiling_s
