"""A residency that records what routes ask of it, and whose workers say what a test tells them to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from engines.wire import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Priority,
    Request,
    TextDelta,
    TokenizerAnswer,
    Usage,
    WireError,
)
from gateway.errors import GatewayError, ShuttingDown
from gateway.registry.catalog import ResolvedModel
from gateway.residency.event_feed import EventFeed
from gateway.residency.explain import Explanation
from gateway.residency.reload import Reload
from gateway.residency.scheduling import ResidentScheduling
from gateway.residency.values import AdminAnswer, UnloadMode

__all__ = ["BOUND_S", "FakeLease", "FakeResidency", "FakeTokenizer", "delta", "failed", "finished"]

BOUND_S = 30.0  # how long a test waits for what must happen

Script = Callable[[Any], AsyncIterator[Event]]


def delta(text: str, *tokens: int) -> TextDelta:
    return TextDelta(request_id=1, text=text, tokens=tokens or (1,))


def finished(reason: FinishReason = "stop", prompt: int = 3, completion: int = 2) -> Finished:
    return Finished(request_id=1, reason=reason, usage=Usage(prompt_tokens=prompt, completion_tokens=completion))


def failed(code: str, message: str = "it broke") -> Failed:
    return Failed(request_id=1, error=WireError(code=code, message=message))


@dataclass
class FakeLease:
    """One lease. ``cancelled`` is set when one of its streams was left before its end, ``ended`` when one came to it."""

    model: str
    client: str
    route: str
    script: Script
    requests: list[Any] = field(default_factory=list)
    priority: Priority = "normal"
    ended: bool = False
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def stream(self, request: Request) -> AsyncGenerator[Event, None]:
        self.requests.append(request)
        over = False
        try:
            async for event in self.script(request):
                over = isinstance(event, Finished | Failed)
                self.ended = self.ended or over
                yield event
        finally:
            if not over:
                self.cancelled.set()


class FakeTokenizer:
    """Records what it is asked. ``answer`` answers; ``refusal`` is raised instead; ``admit`` (when set) holds answers back."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any, bool, bool]] = []  # model, what, texts, pieces
        self.answer = TokenizerAnswer()
        self.refusal: Exception | None = None
        self.admit: asyncio.Event | None = None
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def ask(
        self, model: ResolvedModel, what: Any, *, texts: bool = False, pieces: bool = False
    ) -> TokenizerAnswer:
        self.asked.append((model.id, what, texts, pieces))
        self.began.set()
        try:
            if self.admit is not None:
                await self.admit.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.refusal is not None:
            raise self.refusal
        return self.answer


class FakeResidency:
    """``script`` answers each request; ``admit`` (when set) holds acquire back; ``refusal`` is raised by it."""

    def __init__(self, *events: Event) -> None:
        self.script: Script = self._say(events)
        self.refusal: Exception | None = None
        self.admit: asyncio.Event | None = None
        self.leases: list[FakeLease] = []
        self.waiting = 0
        self.leased = asyncio.Event()
        self.is_shutting_down = False
        self.is_healthy = True
        self.unready: str | None = None
        self.on_shutdown: Callable[[], Any] | None = None
        self.started = False
        self.events = EventFeed()
        self.asked: list[tuple[str, ...]] = []  # by operators
        self.tokenizer = FakeTokenizer()
        self.held_rows: ResidentScheduling | None = None
        self.snapshot: Any = SimpleNamespace(budget=None, models=(), queue=(), leases=(), workers=())

    @staticmethod
    def _say(events: tuple[Event, ...]) -> Script:
        async def script(_request: Request) -> AsyncIterator[Event]:
            for event in events:
                yield event

        return script

    def say(self, *events: Event) -> None:
        """From now on each request is answered with these events."""
        self.script = self._say(events)

    @property
    def held(self) -> int:
        """Leases that are out."""
        return sum(not lease.released.is_set() for lease in self.leases)

    @asynccontextmanager
    async def acquire(
        self, model: ResolvedModel, *, client: str, route: str, priority: Priority = "normal"
    ) -> AsyncIterator[FakeLease]:
        if self.is_shutting_down:
            raise ShuttingDown("the server is shutting down")
        if self.refusal is not None:
            raise self.refusal
        if self.admit is not None:
            self.waiting += 1
            try:
                await self.admit.wait()
            finally:
                self.waiting -= 1
        lease = FakeLease(model.id, client, route, self.script, priority=priority)
        self.leases.append(lease)
        self.leased.set()
        try:
            yield lease
        finally:
            lease.released.set()

    def note_files(self, model: ResolvedModel) -> None:
        self.asked.append(("note_files", model.id))

    def keep_alive(self, model: ResolvedModel, seconds: float) -> None:
        self.asked.append(("keep_alive", model.id, f"{seconds:g}"))

    async def start(self) -> None:
        self.started = True

    async def shutdown(self) -> None:
        self.is_shutting_down = True
        if self.on_shutdown is not None:
            await self.on_shutdown()

    def statistics(self) -> Any:
        return self.snapshot

    def scheduling(self, model: str) -> ResidentScheduling | None:
        return self.held_rows

    def healthy(self, now: float) -> bool:
        return self.is_healthy

    def ready(self) -> str | None:
        return self.unready

    def _answer(self, *asked: str) -> AdminAnswer:
        self.asked.append(asked)
        if self.refusal is not None:
            raise self.refusal
        return AdminAnswer(asked[1], "loaded", 1)

    async def load(self, model: str) -> AdminAnswer:
        return self._answer("load", model)

    async def unload(self, model: str, mode: UnloadMode, deadline_s: float) -> AdminAnswer:
        return self._answer("unload", model, mode, f"{deadline_s:g}")

    async def pin(self, model: str) -> AdminAnswer:
        return self._answer("pin", model)

    async def unpin(self, model: str) -> AdminAnswer:
        return self._answer("unpin", model)

    def plan(self, model: str) -> Explanation:
        return Explanation(model, "unloaded", "load", True)

    def cancel_lease(self, lease_id: str) -> str:
        return self._answer("cancel", lease_id).model

    async def reload(self) -> Reload:
        self.asked.append(("reload",))
        if self.refusal is not None:
            raise self.refusal
        return Reload((), (), (), (), ())


def refusing(error: GatewayError) -> FakeResidency:
    """A residency that grants nothing."""
    residency = FakeResidency()
    residency.refusal = error
    return residency
