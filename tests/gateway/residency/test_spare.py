"""The spare pool, with real worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engines.wire import Ready
from gateway.residency.spare import SparePool
from gateway.residency.worker_host import WorkerHost
from gateway.residency.worker_process import WorkerCommand
from tests.gateway.residency.helpers_workers import BARE, BOUND_S, Recorder, drained, simulated, text_of, words


class Watched:
    """A pool, and a wait for what it tells of."""

    def __init__(self, limit: int, command: WorkerCommand) -> None:
        self._changed = asyncio.Event()
        self.pool = SparePool(command, limit=limit, cancel_timeout_s=10, on_change=self._changed.set)

    async def warm(self, count: int) -> tuple[WorkerHost, ...]:
        """The spares, once ``count`` of them have said Hello; at no time do two import."""
        async with asyncio.timeout(BOUND_S):
            while True:
                hosts = self.pool.hosts
                assert sum(host.hello is None for host in hosts) <= 1
                if sum(host.hello is not None for host in hosts) == count:
                    return hosts
                await self.change()

    async def change(self) -> None:
        async with asyncio.timeout(BOUND_S):
            self._changed.clear()
            await self._changed.wait()


@asynccontextmanager
async def watched(limit: int = 1, command: WorkerCommand = BARE) -> AsyncIterator[Watched]:
    watch = Watched(limit, command)
    try:
        yield watch
    finally:
        async with asyncio.timeout(BOUND_S):
            await watch.pool.close()


async def test_spare_is_warm_and_loads_when_taken() -> None:
    async with watched() as watch:
        watch.pool.refill()
        await watch.warm(1)
        host = watch.pool.take()
        assert host is not None and watch.pool.hosts == ()
        host.listener = recorder = Recorder()
        host.load(simulated())
        await recorder.message(Ready)
        assert text_of(await drained(host.submit(words(2)))) == "w0 w1"
        host.kill()
        await recorder.ended()


async def test_spare_taken_while_it_imports_loads_when_it_is_through() -> None:
    async with watched() as watch:
        watch.pool.refill()
        host = watch.pool.take()
        assert host is not None and host.hello is None
        host.listener = recorder = Recorder()
        host.load(simulated())
        await recorder.message(Ready)
        host.kill()
        await recorder.ended()


async def test_spare_none_while_a_load_runs_and_one_after_it() -> None:
    async with watched() as watch:
        watch.pool.refill()
        (first,) = await watch.warm(1)
        watch.pool.pause()
        taken = watch.pool.take()
        assert taken is first and watch.pool.take() is None
        taken.listener = recorder = Recorder()
        taken.kill()
        await recorder.ended()
        assert watch.pool.hosts == ()
        watch.pool.refill()
        (second,) = await watch.warm(1)
        assert second.pid != first.pid


async def test_spare_two_are_started_one_after_the_other() -> None:
    async with watched(limit=2) as watch:
        watch.pool.refill()
        assert len(await watch.warm(2)) == 2


async def test_spare_limit_of_zero_starts_none() -> None:
    async with watched(limit=0) as watch:
        watch.pool.refill()
        assert watch.pool.hosts == () and watch.pool.take() is None


async def test_spare_that_cannot_live_is_told_and_not_restarted_in_a_loop() -> None:
    async with watched(command=WorkerCommand(arguments=("--no-such-option",))) as watch:
        watch.pool.refill()
        while watch.pool.hosts:
            await watch.change()
        assert watch.pool.failure is not None and "--no-such-option" in watch.pool.failure
        watch.pool.refill()
        assert watch.pool.hosts == ()


async def test_spare_that_is_killed_is_replaced_later_and_no_load_gets_it() -> None:
    async with watched() as watch:
        watch.pool.refill()
        (host,) = await watch.warm(1)
        os.kill(host.pid, signal.SIGKILL)
        while watch.pool.hosts:
            await watch.change()
        assert watch.pool.take() is None
        assert watch.pool.failure is None  # it had started: no sign that others cannot


async def test_spare_python_that_is_not_there_is_told() -> None:
    async with watched(command=WorkerCommand(python="/nowhere/no-such-python")) as watch:
        watch.pool.refill()
        assert watch.pool.failure is not None and "no-such-python" in watch.pool.failure


async def test_spare_close_ends_one_that_still_imports() -> None:
    async with watched() as watch:
        watch.pool.refill()
        (host,) = watch.pool.hosts
        await watch.pool.close()
        assert host.exit is not None and watch.pool.hosts == ()
        watch.pool.refill()
        assert watch.pool.hosts == ()
