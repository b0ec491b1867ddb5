"""A simulated engine that takes more than it was given: the first word of a prompt says how, the second how many MiB.

``swell`` adds to its static bytes, ``hoard`` to its prompt caches, which it gives back when asked; ``cling`` hoards and gives
nothing back.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from engines.interface import ReportProgress
from engines.simulated import SimulatedEngine
from engines.simulated import build as build_simulated
from engines.wire import LoadModel, MemoryReport, TextPrompt, TextRequest

MIB = 1024**2


class SwellingEngine:
    def __init__(self, inner: SimulatedEngine) -> None:
        self._inner = inner
        self._static = 0
        self._cache = 0
        self._clings = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def prepare(self, request: TextRequest) -> Any:
        assert isinstance(request.prompt, TextPrompt)
        return request.prompt.text.split(), self._inner.prepare(request)

    def submit(self, request_id: int, prepared: Any) -> None:
        words, row = prepared
        if words[0] == "swell":
            self._static += int(words[1]) * MIB
        elif words[0] in ("hoard", "cling"):
            self._cache += int(words[1]) * MIB
            self._clings = words[0] == "cling"
        self._inner.submit(request_id, row)

    def shed(self, byte_count: int) -> None:
        if not self._clings:
            self._cache = max(0, self._cache - byte_count)

    def memory(self) -> MemoryReport:
        report = self._inner.memory()
        return replace(report, static=report.static + self._static, prompt_cache=self._cache)


def build(load: LoadModel, report: ReportProgress) -> SwellingEngine:
    return SwellingEngine(build_simulated(load, report))
