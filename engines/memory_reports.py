"""What a worker says of its memory: the engine's own report, completed by a reading of the device, and when it is due.

On the device thread. A report leaves each second, and earlier where the sum has moved by 5 %.
"""

from __future__ import annotations

import time

from engines.device import MemoryProbe, memory_probe, release_unused
from engines.heap import trim_heap
from engines.interface import ServingEngine
from engines.wire import MemoryReport

__all__ = ["READ_S", "REPORT_S", "MemoryReports"]

REPORT_S = 1.0
READ_S = 0.25  # how often a change is looked for
_READING_SHARE = 0.02  # of the thread's time, at most: a reading of a mapped checkpoint takes 12 ms a GiB
_CHANGE = 0.05
_REST_S = 0.5  # without a step, then the engine has come to rest
_TRIM_S = 10.0  # between two trims of the heap of an engine that steps without a pause: 0.5 ms each


class MemoryReports:
    """One for the life of a worker.

    ``baseline`` is what an empty worker takes, in bytes; 0 while nothing is probed.
    """

    def __init__(self) -> None:
        self.baseline = 0
        self._probe: MemoryProbe | None = None  # None: the engine's own report is complete (simulated)
        self._grown = 0  # the probe's last reading, beyond the baseline
        self._static = 0  # of that, at rest, what the engine's caches did not hold
        self._temporary = 0  # what steps take beyond, until it is given back
        self._next_reading = 0.0
        self._last_measured = 0.0
        self._last_sent = 0.0
        self._reported: MemoryReport | None = None
        self._last_step: float | None = None  # None: none since memory was last released
        self._next_trim = 0.0

    @property
    def probes(self) -> bool:
        """Whether the device is read, which a simulated engine has none of."""
        return self._probe is not None

    def begin(self) -> None:
        """Before an engine is built: reads what the worker takes without one, from now on by the device's probe."""
        self._probe = memory_probe()
        trim_heap()  # the imports' temporaries are no part of an empty worker
        self.baseline = self._probe.read()

    def stepped(self) -> None:
        """The engine has made a step."""
        self._last_step = time.monotonic()

    def until_due(self) -> float:
        """Seconds until the next report is due."""
        return max(0.0, self._last_sent + REPORT_S - time.monotonic())

    def ask_at_once(self) -> None:
        """The next look reads anew and reports, whatever it finds."""
        self._next_reading = self._last_measured = self._last_sent = 0.0

    def due(self, engine: ServingEngine, *, has_room: bool) -> MemoryReport | None:
        """The report that is to leave now, if any. Without ``has_room`` a gateway does not read, and gets none heaped up either."""
        now = time.monotonic()
        due = now - self._last_sent >= REPORT_S
        if not due and now - self._last_measured < READ_S:
            return None
        if not has_room:
            self._last_sent = now
            return None
        self._release(engine)
        memory = self.measure(engine)
        if not due and not _changed(self._reported, memory):
            return None
        self._last_sent = now
        self._reported = memory
        return memory

    def measure(self, engine: ServingEngine) -> MemoryReport:
        """The engine's report; where a probe measures, static is what it reads at rest beyond the baseline and the caches.

        What it reads more while the engine steps are temporaries, and freed memory not given back yet: it counts with the unused
        buffers, whose room the grant covers.
        """
        memory = engine.memory()
        self._last_measured = now = time.monotonic()
        if self._probe is None:
            return memory
        if now >= self._next_reading:
            self._grown = self._probe.read() - self.baseline
            rest = max(0, self._grown - memory.kv - memory.prompt_cache - memory.mlx_cache)
            if self._last_step is None:
                self._static = rest
            self._temporary = max(0, rest - self._static)
            took = time.monotonic() - now
            self._next_reading = now + took / _READING_SHARE
        return MemoryReport(
            static=self._static,
            kv=memory.kv,
            prompt_cache=memory.prompt_cache,
            mlx_cache=memory.mlx_cache + self._temporary,
            peak=max(memory.peak, self._grown),
        )

    def _release(self, engine: ServingEngine) -> None:
        """Gives back what the steps left unused: all of it once the engine has come to rest, else the heap's, seldom."""
        now = time.monotonic()
        if self._probe is None or self._last_step is None:
            return
        if not engine.busy and now - self._last_step >= _REST_S:
            release_unused()
            self._last_step = None
        elif engine.busy and now >= self._next_trim:
            trim_heap()
            self._next_trim = now + _TRIM_S


def _changed(before: MemoryReport | None, now: MemoryReport) -> bool:
    """True when the sum moved by 5 % or more."""
    if before is None:
        return True
    was = before.static + before.kv + before.prompt_cache + before.mlx_cache
    total = now.static + now.kv + now.prompt_cache + now.mlx_cache
    return abs(total - was) >= _CHANGE * max(was, 1)
