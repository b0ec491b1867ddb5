"""A residency with simulated models in real worker processes, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engines.wire import Event, Sampling, TextDelta, TextPrompt, TextRequest
from gateway.machine import Machine
from gateway.registry.catalog import Catalog
from gateway.registry.load import parse_registry
from gateway.residency.lease import Lease
from gateway.residency.shell import Residency
from gateway.residency.worker_process import WorkerCommand
from gateway.settings import Settings
from tests.gateway.residency.helpers_workers import BOUND_S

GIB = 1024**3
MACHINE = Machine("cpu", ram_bytes=16 * GIB, device_bytes=16 * GIB, cores=2)


class WatchedResidency(Residency):
    """Says when the core was given an event: whatever a test waits for comes with one."""

    def __init__(
        self, settings: Settings, catalog: Catalog, *, command: WorkerCommand | None = None, state: Path | None = None
    ) -> None:
        super().__init__(settings, catalog, command=command, state=state)
        self.news = asyncio.Event()

    def _handle(self, event: Any) -> None:
        super()._handle(event)
        self.news.set()


class House:
    """A running residency, and short words for what tests do with it."""

    def __init__(self, residency: WatchedResidency, catalog: Catalog) -> None:
        self.residency = residency
        self.catalog = catalog

    def acquire(self, model: str) -> Any:
        return self.residency.acquire(self.catalog.resolve(model), client="test", route="/test")

    async def ask(self, model: str, count: int | None = 3, text: str = "hello") -> str:
        """The whole answer."""
        async with asyncio.timeout(BOUND_S), self.acquire(model) as lease:
            return await self.read(lease, count, text)

    async def read(self, lease: Lease, count: int | None = 3, text: str = "hello", *, temperature: float = 1.0) -> str:
        request = TextRequest(
            prompt=TextPrompt(text=text), max_tokens=count, sampling=Sampling(temperature=temperature)
        )
        events = [event async for event in lease.stream(request)]
        return "".join(event.text for event in events if isinstance(event, TextDelta))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits for an event of the core after which it holds."""
        async with asyncio.timeout(BOUND_S):
            while not holds():
                self.residency.news.clear()
                await self.residency.news.wait()

    async def gone(self, model: str) -> None:
        """Waits until the model has no worker."""
        await self.until(lambda: all(worker.model != model for worker in self.residency.statistics().workers))

    def state(self, model: str) -> str:
        return str(next(entry.state for entry in self.residency.statistics().models if entry.id == model))

    def pid(self, model: str) -> int:
        return next(worker.pid for worker in self.residency.statistics().workers if worker.model == model)

    @property
    def leases(self) -> int:
        return len(self.residency.statistics().leases)


def registry(models: str, settings: str = "memory: {budget: 10GiB}") -> str:
    return f"{settings}\nmodels:\n{models}\n"


def sim(name: str, *, simulate: str = "weights: 4GiB", keys: str = "") -> str:
    """One registry line."""
    return f'  - {{id: {name}, source: "sim:", simulate: {{{simulate}}}{", " + keys if keys else ""}}}'


@asynccontextmanager
async def house(
    *models: str, settings: str = "memory: {budget: 10GiB}", command: WorkerCommand | None = None
) -> AsyncIterator[House]:
    """A residency that is shut down, with its workers gone and its tasks ended, when the block ends."""
    before = asyncio.all_tasks()
    read = parse_registry(registry("\n".join(models), settings), Path("registry.yaml"), machine=MACHINE)
    catalog = Catalog(read)
    residency = WatchedResidency(read.settings, catalog, command=command)
    await residency.start()
    try:
        yield House(residency, catalog)
    finally:
        async with asyncio.timeout(BOUND_S):
            await residency.shutdown(0)
        assert residency.statistics().workers == ()
        assert asyncio.all_tasks() <= before


async def first_text(events: AsyncIterator[Event]) -> TextDelta:
    async with asyncio.timeout(BOUND_S):
        async for event in events:
            if isinstance(event, TextDelta):
                return event
    raise AssertionError("the stream ended without text")


def open_descriptors() -> int:
    """How many this process has."""
    return len(list(Path("/dev/fd").iterdir()))
