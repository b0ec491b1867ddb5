"""The gateway's tokenizer: real processes that start, answer, rest, hang and die."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from engines.wire import DecodeTokens, EncodeText
from gateway.errors import InvalidRequest, QueueTimeout, ServerOverloaded, ShuttingDown, WorkerDied
from gateway.registry.catalog import ResolvedModel
from gateway.residency.tokenizer import Tokenizer
from gateway.residency.worker_process import WorkerCommand
from tests.gateway.helpers_app import make_catalog

BOUND_S = 30.0
REAL = WorkerCommand(module="engines.tokenizer_worker", threads=1)


def odd(mode: str) -> WorkerCommand:
    return WorkerCommand(module="tests.gateway.residency.helpers_odd_tokenizer", arguments=(mode,))


class Watch:
    """What the tokenizer's owner hears."""

    def __init__(self) -> None:
        self.changes = 0
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self.changes += 1
        self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def tokenizer(command: WorkerCommand = REAL, **options: Any) -> AsyncIterator[tuple[Tokenizer, Watch]]:
    watch = Watch()
    made = Tokenizer(command, watch.changed, **options)
    try:
        yield made, watch
    finally:
        async with asyncio.timeout(BOUND_S):
            await made.close()
        assert made.pids == ()


def sim() -> ResolvedModel:
    return make_catalog().resolve("a")


def words(text: str) -> EncodeText:
    return EncodeText(text=text, add_special=True, parse_special=False)


async def count(made: Tokenizer, text: str = "w1 w2") -> int:
    async with asyncio.timeout(BOUND_S):
        return len((await made.ask(sim(), words(text))).tokens)


async def test_ask_starts_one_process_for_all_and_answers() -> None:
    async with tokenizer() as (made, watch):
        assert made.pids == ()
        assert await asyncio.gather(*(count(made, "w1 " * n) for n in range(1, 6))) == [1, 2, 3, 4, 5]
        assert len(made.pids) == 1
        assert watch.changes >= 1
        large = await made.ask(sim(), words("w3 " * 150_000))
        assert large.tokens == (3,) * 150_000


async def test_ask_refusal_of_one_is_none_of_others() -> None:
    async with tokenizer() as (made, _):
        with pytest.raises(InvalidRequest, match=r"tokens\[0\]"):
            await made.ask(sim(), DecodeTokens(tokens=(-1,)))
        assert await count(made) == 2


async def test_death_is_503_for_those_in_flight_and_the_next_gets_a_new_process() -> None:
    async with tokenizer(odd("mute")) as (made, _):
        asked = asyncio.ensure_future(count(made))
        await asyncio.sleep(0)
        first = made.pids
        os.kill(first[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="was ended by SIGKILL") as death:
            await asked
        assert death.value.retry is True
        assert death.value.retry_after_s == 1.0
    async with tokenizer() as (made, watch):
        assert await count(made) == 2
        first = made.pids
        os.kill(first[0], signal.SIGKILL)
        await watch.until(lambda: made.pids == ())
        assert await count(made) == 2
        assert made.pids != first


@pytest.mark.parametrize(
    ("mode", "why"), [("babble", "broke the protocol: not a message"), ("bodiless", "request 1 has no body")]
)
async def test_breach_of_protocol_kills_the_process(mode: str, why: str) -> None:
    async with tokenizer(odd(mode)) as (made, watch):
        with pytest.raises(WorkerDied, match=why):
            await count(made)
        await watch.until(lambda: made.pids == ())


@pytest.mark.parametrize(
    ("command", "why"),
    [(WorkerCommand(python="/nowhere/no-such-python"), "cannot be started"), (odd("exit"), "status 3 .*no luck")],
)
async def test_process_that_does_not_come_up_is_not_started_at_once_again(command: WorkerCommand, why: str) -> None:
    async with tokenizer(command) as (made, watch):
        with pytest.raises(WorkerDied, match=why):
            await count(made)
        changes = watch.changes
        with pytest.raises(WorkerDied, match=why):
            await count(made)
        assert watch.changes == changes


async def test_timeout_is_503_and_a_process_that_said_nothing_is_killed() -> None:
    async with tokenizer(odd("mute"), timeout_s=0.05) as (made, watch):
        made._started()
        await watch.until(lambda: made._host is not None and made._host.greeted)
        with pytest.raises(QueueTimeout, match=r"within 0\.05 s"):
            await count(made)
        await watch.until(lambda: made.pids == ())


async def test_too_many_requests_are_503_and_places_come_back() -> None:
    async with tokenizer(odd("mute"), most_requests=2) as (made, _):
        asked = [asyncio.ensure_future(count(made)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(ServerOverloaded, match="2 requests"):
            await count(made)
        for one in asked:
            one.cancel()
        await asyncio.wait(asked)
        third = asyncio.ensure_future(count(made))
        await asyncio.sleep(0)
        assert not third.done()
        third.cancel()
        await asyncio.wait([third])


async def test_cancelled_request_leaves_the_process_to_others() -> None:
    async with tokenizer() as (made, _):
        assert await count(made) == 2
        first = made.pids
        asked = asyncio.ensure_future(count(made, "w1 " * 300_000))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
        assert asked.cancelled()
        assert await count(made) == 2
        assert made.pids == first


async def test_idle_process_ends_and_the_next_request_starts_another() -> None:
    async with tokenizer(idle_s=0.01) as (made, watch):
        assert await count(made) == 2
        await watch.until(lambda: made.pids == ())
        assert await count(made) == 2


async def test_finish_waits_for_what_is_under_way_and_refuses_the_rest() -> None:
    async with tokenizer() as (made, _):
        asked = asyncio.ensure_future(count(made, "w1 " * 50_000))
        await asyncio.sleep(0)
        async with asyncio.timeout(BOUND_S):
            await made.finish()
        assert await asked == 50_000
        with pytest.raises(ShuttingDown):
            await count(made)


async def test_kill_ends_what_is_under_way() -> None:
    async with tokenizer(odd("mute")) as (made, _):
        asked = asyncio.ensure_future(count(made))
        await asyncio.sleep(0)
        made.kill()
        with pytest.raises(WorkerDied, match="shutting down"):
            await asked
