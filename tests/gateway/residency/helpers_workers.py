"""Real worker processes for tests: a listener that records, and waits with a bound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from engines.wire import Event, LoadModel, ModelSpec, Ready, SimulateSpec, TextDelta, TextPrompt, TextRequest
from gateway.residency.request_stream import RequestStream
from gateway.residency.worker_host import WorkerHost, WorkerMessage
from gateway.residency.worker_process import WorkerCommand, WorkerExit

BOUND_S = 30.0
BARE = WorkerCommand(arguments=("--bare",))

Message = TypeVar("Message")


class Recorder:
    """A HostListener that keeps all it hears."""

    def __init__(self) -> None:
        self.messages: list[WorkerMessage] = []
        self.exit: WorkerExit | None = None
        self._news = asyncio.Event()

    def worker_said(self, host: WorkerHost, message: WorkerMessage) -> None:
        self.messages.append(message)
        self._news.set()

    def worker_exited(self, host: WorkerHost, exit: WorkerExit) -> None:
        assert self.exit is None, "an exit is told once"
        self.exit = exit
        self._news.set()

    async def message(self, kind: type[Message]) -> Message:
        """The first message of this kind."""
        await self._until(lambda: any(isinstance(message, kind) for message in self.messages))
        return next(message for message in self.messages if isinstance(message, kind))

    async def ended(self) -> WorkerExit:
        await self._until(lambda: self.exit is not None)
        assert self.exit is not None
        return self.exit

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND_S):
            while not holds():
                self._news.clear()
                await self._news.wait()


def simulated(**simulate: object) -> LoadModel:
    """A LoadModel for a simulated model of 1000 bytes; the keywords are the fields of SimulateSpec."""
    spec = ModelSpec(
        id="sim",
        task="text",
        format="sim",
        paths=(),
        simulate=SimulateSpec(**{"weights_bytes": 1000, **simulate}),  # type: ignore[arg-type]
    )
    return LoadModel(spec=spec)


def words(count: int | None, text: str = "hello") -> TextRequest:
    return TextRequest(prompt=TextPrompt(text=text), max_tokens=count)


@asynccontextmanager
async def started(
    command: WorkerCommand = BARE, *, cancel_timeout_s: float = 10.0
) -> AsyncIterator[tuple[WorkerHost, Recorder]]:
    """A worker that is gone when the block ends."""
    recorder = Recorder()
    host = WorkerHost(command, recorder, cancel_timeout_s=cancel_timeout_s)
    try:
        yield host, recorder
    finally:
        host.kill()
        await recorder.ended()


@asynccontextmanager
async def loaded(*, cancel_timeout_s: float = 10.0, **simulate: object) -> AsyncIterator[tuple[WorkerHost, Recorder]]:
    """A worker with a simulated model."""
    async with started(cancel_timeout_s=cancel_timeout_s) as (host, recorder):
        host.load(simulated(**simulate))
        await recorder.message(Ready)
        yield host, recorder


async def drained(stream: RequestStream) -> list[Event]:
    """All events of a stream; what it raises is raised."""
    async with asyncio.timeout(BOUND_S):
        return [event async for event in stream]


async def first_text(stream: RequestStream) -> TextDelta:
    async with asyncio.timeout(BOUND_S):
        async for event in stream:
            if isinstance(event, TextDelta):
                return event
    raise AssertionError("the stream ended without text")


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))
