"""An engine for the worker's tests: the first word of a prompt says how it breaks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import Any

from engines.interface import ReportProgress
from engines.simulated import SimulatedEngine
from engines.simulated import build as build_simulated
from engines.wire import Event, LoadModel, TextPrompt, TextRequest


class BrokenEngine:
    """Delegates to the simulated engine until told to break."""

    prepares_at_once = False

    def __init__(self, inner: SimulatedEngine) -> None:
        self._inner = inner
        self._break_next = False
        self.cores: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def busy(self) -> bool:
        return self._inner.busy or self._break_next

    def set_cores(self, cores: int) -> None:
        self.cores.append(cores)

    def prepare(self, request: TextRequest) -> Any:
        assert isinstance(request.prompt, TextPrompt)
        first = request.prompt.text.partition(" ")[0]
        if first == "unprepared":
            raise ZeroDivisionError("the template is broken")
        if first == "forever":
            threading.Event().wait()
        return first, self._inner.prepare(request)

    def submit(self, request_id: int, prepared: Any) -> None:
        first, row = prepared
        self._break_next = first == "break"
        if first == "exit":
            sys.exit("a library gives up")
        if first == "cores":
            row.prompt_tokens = self.cores[-1]  # for the test to read
        self._inner.submit(request_id, row)

    def step(self) -> Sequence[Event]:
        if self._break_next:
            raise ZeroDivisionError("a kernel divided by zero")
        return self._inner.step()


def build(load: LoadModel, report: ReportProgress) -> BrokenEngine:
    if load.spec.id == "unbuildable":
        raise ZeroDivisionError("a tensor divided by zero")
    return BrokenEngine(build_simulated(load, report))
