"""Splits rows over a few threads that sleep when there is nothing to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["RowPool", "usable_cores"]


def usable_cores() -> int:
    """Cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


class RowPool:
    """``cores`` threads, the caller's among them. One caller at a time: the device thread."""

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._executor: ThreadPoolExecutor | None = (
            None  # made at first use: most processes that import this never multiply
        )

    @property
    def cores(self) -> int:
        return self._cores

    def resize(self, cores: int) -> None:
        """Use ``cores`` threads from the next run on."""
        if cores != self._cores:
            self._cores = cores
            self.close()

    def close(self) -> None:
        """Ends the threads; a later run starts new ones."""
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None

    def run(self, work: Callable[[int, int], None], rows: int, least: int) -> None:
        """Calls ``work(start, stop)`` on parts that make up ``range(rows)``, side by side, each of ``least`` rows or more.

        The caller's thread takes the first part. An error in any part is raised when all have ended.
        """
        parts = max(1, min(self._cores, rows // max(1, least)))
        if parts == 1:
            work(0, rows)
            return
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self._cores - 1, thread_name_prefix="rows")
        cuts = [rows * part // parts for part in range(parts + 1)]
        others = [self._executor.submit(work, cuts[part], cuts[part + 1]) for part in range(1, parts)]
        try:
            work(0, cuts[1])
        finally:
            errors = [other.exception() for other in others]
        for error in errors:
            if error is not None:
                raise error
