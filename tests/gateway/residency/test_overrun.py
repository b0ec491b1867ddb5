"""Overruns and faults of real worker processes: measured above charged, memory that stays, deaths and hangs under growth."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import pytest

from engines.wire import Event, TextPrompt, TextRequest
from gateway.errors import GatewayError, WorkerDied
from gateway.residency.event_feed import Subscription, Transition
from gateway.residency.lease import Lease
from gateway.residency.statistics import ModelStatistics
from gateway.residency.worker_process import WorkerCommand
from tests.gateway.residency.helpers_residency import GIB, House, first_text, house, sim
from tests.gateway.residency.helpers_workers import BOUND_S, words

MIB = 1024**2


@dataclass(frozen=True)
class SwellingCommand(WorkerCommand):
    """Workers whose simulated engine takes more than it was given."""

    def argv(self, descriptor: int) -> list[str]:
        code = (
            "from engines import device_thread, worker; "
            "device_thread.ENGINES['text', 'sim'] = 'tests.engines.helpers_swelling_engine'; worker.main()"
        )
        return [self.python, "-c", code, *super().argv(descriptor)[3:]]


@asynccontextmanager
async def swelling(*models: str) -> AsyncIterator[House]:
    async with house(*models, command=SwellingCommand()) as inn:
        yield inn
        inn.residency.check_integrity()


def model(inn: House, name: str) -> ModelStatistics:
    return next(entry for entry in inn.residency.statistics().models if entry.id == name)


def available(inn: House) -> int:
    return inn.residency.statistics().budget.available_bytes


def told(feed: Subscription) -> list[tuple[str, str]]:
    """Model and cause of each transition since the last call."""
    return [(event.model, event.cause) for event in feed.take() if isinstance(event, Transition)]


async def begin(lease: Lease, text: str) -> AsyncIterator[Event]:
    """A stream that has begun and does not end by itself."""
    events = lease.stream(TextRequest(prompt=TextPrompt(text=text), max_tokens=100_000))
    await first_text(events)
    return events


A = sim("a", simulate="weights: 4GiB, tokens_per_s: 50", keys="kv_grant: 1GiB")
B = sim("b", simulate="weights: 2GiB", keys="kv_grant: 1GiB")


async def test_overrun_charge_follows_what_is_measured() -> None:
    async with swelling(A) as inn, inn.acquire("a") as lease:
        assert model(inn, "a").charged_bytes == 5 * GIB
        await begin(lease, "hoard 3072")
        await inn.until(lambda: model(inn, "a").charged_bytes == 7 * GIB)
        await begin(lease, "swell 1024")
        await inn.until(lambda: model(inn, "a").charged_bytes == 8 * GIB)
        assert model(inn, "a").grant_bytes == GIB and available(inn) == 2 * GIB


async def test_overrun_caches_are_shed_before_anyone_is_evicted() -> None:
    async with swelling(A, B) as inn:
        await inn.ask("b")
        async with inn.acquire("a") as lease:
            await begin(lease, "hoard 6144")
            await inn.until(lambda: available(inn) < 0)
            await inn.until(lambda: available(inn) >= 0)
            assert inn.state("b") == "loaded" and model(inn, "b").evictions == 0
            assert await inn.ask("b") == "w0 w1 w2"


async def test_overrun_of_what_cannot_be_shed_evicts_the_idle_and_aborts_nobody() -> None:
    for text in ("swell 5120", "cling 6144"):
        async with swelling(A, B) as inn:
            await inn.ask("b")
            async with inn.acquire("a") as lease:
                events = await begin(lease, text)
                await inn.until(lambda: inn.state("b") == "unloaded")
                await inn.until(lambda: available(inn) >= 0)
                await first_text(events)
                assert inn.state("a") == "loaded"


async def test_overrun_that_nothing_mends_closes_admission_and_says_so() -> None:
    async with swelling(A, B) as inn:
        with inn.residency.events.watch() as feed:
            async with inn.acquire("a") as lease:
                events = await begin(lease, "swell 9216")
                await inn.until(lambda: available(inn) < 0)
                waiting = asyncio.create_task(inn.ask("a", 2))
                other = asyncio.create_task(inn.ask("b", 2))
                await first_text(events)
                assert not waiting.done() and inn.state("b") == "unloaded"
                assert [who for who, cause in told(feed) if cause == "overrun"] == ["a"]
        # With its last lease the swollen worker goes, and everybody is served by what follows.
        async with asyncio.timeout(BOUND_S):
            assert list(await asyncio.gather(waiting, other)) == ["w0 w1", "w0 w1"]
        assert model(inn, "a").generation == 2 and available(inn) >= 0


async def test_overrun_denies_growth_meanwhile() -> None:
    grown = sim("g", simulate="weights: 1GiB, kv_per_token: 1MiB", keys="kv_grant: 512MiB")
    async with swelling(A, grown) as inn:
        await inn.ask("g", 1)
        async with inn.acquire("a") as lease, inn.acquire("g") as served:
            await begin(lease, "swell 5120")
            await inn.until(lambda: available(inn) < 0)
            growing = asyncio.create_task(inn.read(served, 1000))
            await inn.until(lambda: len(inn.residency.statistics().leases) == 2)
            assert model(inn, "g").grant_bytes <= 512 * MIB and not growing.done()
            lease.release()
            async with asyncio.timeout(BOUND_S):
                assert len((await growing).split()) == 1000


# --- deaths under growth


async def test_death_fails_what_had_begun_and_serves_what_waited_for_growth() -> None:
    """Three streams under way and one request that waits for growth when the worker aborts for want of memory."""
    faults = "abort_after_tokens: 600, abort_times: 1"
    a = sim("a", simulate=f"weights: 1GiB, kv_per_token: 1MiB, tokens_per_s: 1000, {faults}", keys="kv_grant: 1536MiB")
    b = sim("b", simulate="weights: 6GiB, tokens_per_s: 20")
    async with house(a, b) as inn, inn.acquire("b") as busy:
        await first_text(busy.stream(words(100_000)))  # so that there is no room to grow

        async def stream() -> None:
            async with inn.acquire("a") as lease:
                async for _ in lease.stream(words(400)):
                    pass

        large = asyncio.create_task(inn.ask("a", 3500))  # first, so that it waits before the worker can have died
        streams = [asyncio.create_task(stream()) for _ in range(3)]
        ends = await asyncio.gather(*streams, return_exceptions=True)
        assert all(isinstance(end, WorkerDied) and end.retry is False for end in ends)
        assert not large.done()
        await inn.until(lambda: model(inn, "a").state == "loaded")
        assert model(inn, "a").generation == 2
        busy.release()
        async with asyncio.timeout(BOUND_S):
            assert len((await large).split()) == 3500


@pytest.mark.parametrize("mode", ["drain", "force"])
async def test_hung_worker_is_killed_at_the_unload_deadline(mode: str) -> None:
    """It hangs with a stream under way: an unload that waits is told so, one by force ends it."""
    settings = "memory: {budget: 10GiB}\nworkers: {cancel_timeout_s: 30, unload_timeout_s: 0.3}"
    async with house(sim("a", simulate="weights: 1, hang_after_tokens: 1"), settings=settings) as inn:
        async with inn.acquire("a") as lease:
            events = lease.stream(words(5))
            await first_text(events)
            if mode == "drain":
                with pytest.raises(GatewayError, match="lease"):
                    await inn.residency.unload("a", "drain", 0.2)
                assert inn.state("a") == "loaded"
            last: Literal["abort", "force"] = "abort" if mode == "drain" else "force"
            assert (await inn.residency.unload("a", last, 0.2)).state == "unloaded"
            with pytest.raises(GatewayError, match="unload"):
                async for _ in events:
                    pass
        await inn.gone("a")


async def test_held_memory_is_charged_past_the_death_of_its_worker() -> None:
    """``hold_memory`` beyond the unload timeout: unreleased, with an event, and what does not fit beside it waits."""
    settings = "memory: {budget: 10GiB}\nworkers: {unload_timeout_s: 0.2}"
    first = sim("a", simulate="weights: 6GiB, kv_per_token: 1, hold_memory: 1.5", keys="kv_grant: 1GiB")
    models = (first, sim("b", simulate="weights: 6GiB"), sim("c", simulate="weights: 3GiB"))
    async with house(*models, settings=settings) as inn:
        with inn.residency.events.watch() as feed:
            await inn.ask("a")
            assert model(inn, "a").charged_bytes == 7 * GIB
            began = asyncio.get_running_loop().time()
            asking = asyncio.create_task(inn.ask("b"))
            await inn.until(lambda: inn.residency.statistics().budget.unreleased_bytes > 0)
            budget = inn.residency.statistics().budget
            assert budget.unreleased_bytes == budget.charged_bytes == 6 * GIB  # its KV went with the process
            assert ("a", "unreleased") in told(feed)
        assert await inn.ask("c") == "w0 w1 w2"  # it fits beside
        assert await asking == "w0 w1 w2"
        assert asyncio.get_running_loop().time() - began >= 1.5
        assert inn.residency.statistics().budget.unreleased_bytes == 0
