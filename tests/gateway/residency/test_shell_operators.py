"""The residency from an operator's side, with real worker processes: what HTTP adds nothing to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.errors import ModelNotFound, ModelUnloaded, NotFound, ShuttingDown
from tests.gateway.residency.helpers_residency import first_text, house, sim
from tests.gateway.residency.helpers_workers import BOUND_S, words


async def test_operators_unknown_model_is_refused_everywhere() -> None:
    async with house(sim("a")) as inn:
        for asking in (inn.residency.load, inn.residency.unload, inn.residency.pin, inn.residency.unpin):
            with pytest.raises(ModelNotFound):
                await asking("nobody")
        with pytest.raises(ModelNotFound):
            inn.residency.plan("nobody")
        with pytest.raises(NotFound):
            inn.residency.cancel_lease("lease-1")


async def test_operators_see_that_a_file_has_changed(tmp_path: Path) -> None:
    """What the core was told of a file is looked at again, also by ``plan``."""
    path = tmp_path / "m.gguf"
    async with house(f"  - {{id: m, source: {path}}}") as inn:
        assert inn.residency.plan("m").action == "refuse"
        assert (inn.state("m"), inn.residency.plan("m").state) == ("failed", "failed")
        path.write_bytes(b"GGUF, but torn")
        plan = inn.residency.plan("m")
        assert plan.error is not None and "m.gguf" in plan.error.message and "no such file" not in plan.error.message
        (shown,) = inn.residency.statistics().models
        assert (shown.state, shown.last_error) == ("failed", plan.error.message)


async def test_operators_cancelled_lease_refuses_later_requests_too() -> None:
    async with house(sim("a", simulate="weights: 1GiB, tokens_per_s: 100")) as inn, inn.acquire("a") as lease:
        events = lease.stream(words(100_000))
        await first_text(events)
        assert inn.residency.cancel_lease(lease.id) == "a"
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(ModelUnloaded, match="operator") as error:
                async for _ in events:
                    pass
        assert error.value.retry is False
        with pytest.raises(ModelUnloaded):
            await anext(lease.stream(words(1)))


async def test_operators_leaving_leaves_nothing_behind() -> None:
    async with house(sim("a", simulate="weights: 1GiB, load_s: 0.2")) as inn:
        loading = asyncio.create_task(inn.residency.load("a"))
        await inn.until(lambda: inn.state("a") == "loading")
        loading.cancel()
        await inn.until(lambda: inn.state("a") == "loaded")
        assert inn.residency._operators._answers == {}


async def test_operators_wait_no_longer_than_the_gateway_lives() -> None:
    async with house(sim("a", simulate="weights: 6GiB, load_s: 1000"), sim("b", simulate="weights: 6GiB")) as inn:
        waits = [asyncio.create_task(inn.residency.load(name)) for name in ("a", "b")]
        await inn.until(lambda: inn.state("a") == "loading")
        async with asyncio.timeout(BOUND_S):
            await inn.residency.shutdown(0)
            results = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(result) for result in results] == [ShuttingDown, ShuttingDown]
        with pytest.raises(ShuttingDown):
            await inn.residency.load("a")
        with inn.residency.events.watch() as watcher:
            assert watcher.ended


async def test_operators_verbs_and_requests_at_once_leave_the_accounts_even() -> None:
    """Unload and a request in the same turn of the loop, many times: each is served or told 503, nothing is left over."""
    async with house(sim("a", simulate="weights: 1GiB")) as inn:
        for number in range(9):
            mode = ("drain", "abort", "force")[number % 3]
            await inn.ask("a", 1)
            asking = asyncio.create_task(inn.ask("a", 1))
            unloading = asyncio.create_task(inn.residency.unload("a", mode))  # type: ignore[arg-type]
            results = await asyncio.gather(asking, unloading, return_exceptions=True)
            assert results[0] == "w0" or getattr(results[0], "status", None) == 503, results
            assert not isinstance(results[1], BaseException), results
        await inn.until(lambda: inn.leases == 0)
        inn.residency.check_integrity()
        assert len(inn.residency.statistics().workers) <= 1
