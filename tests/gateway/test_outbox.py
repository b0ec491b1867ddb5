"""What waits between a worker and its client."""

from __future__ import annotations

import asyncio

from engines.wire import TokenLogprob
from gateway.errors import ServerOverloaded
from gateway.outbox import Outbox
from gateway.protocols.completion import Piece
from tests.gateway.helpers_residency import BOUND_S, finished


async def test_deltas_stay_apart_until_many_wait() -> None:
    outbox = Outbox(separate=3)
    end = finished()
    for index, text in ((0, "a"), (1, "x"), (0, "b"), (0, "c"), (1, "y"), (2, "p"), (2, "q")):
        outbox.put(index, text)
    outbox.finish(0, end)
    assert outbox.take() == [Piece(0, "a"), Piece(1, "xy"), Piece(0, "bc", end), Piece(2, "pq")]
    outbox.put(0, "d")
    assert outbox.take() == [Piece(0, "d")]


async def test_text_of_a_choice_joins_and_choices_keep_their_order() -> None:
    outbox = Outbox(separate=0)
    for index, text in ((1, "a"), (0, "x"), (1, "b"), (0, ""), (0, "é")):
        outbox.put(index, text)
    end = finished()
    outbox.finish(1, end)
    assert outbox.waiting_bytes == 5
    assert outbox.take() == [Piece(1, "ab", end), Piece(0, "xé")]
    assert outbox.take() == []
    assert outbox.waiting_bytes == 0


async def test_log_probabilities_stay_with_their_text() -> None:
    outbox = Outbox(separate=1)
    a, b, c = (TokenLogprob(i, b"x", -1.0) for i in range(3))
    outbox.put(0, "a", (a,))
    assert outbox.waiting_bytes > 1
    outbox.put(0, "b", (b,))  # joins
    outbox.put(0, "", (c,))  # a token whose text came before
    outbox.put(0, "", ())  # nothing
    assert outbox.take() == [Piece(0, "ab", None, (a, b, c))]
    outbox.put(0, "d")
    outbox.put(0, "e", (a,))
    assert outbox.take() == [Piece(0, "de", None, (a,))]
    assert outbox.waiting_bytes == 0


async def test_nothing_follows_the_end() -> None:
    outbox = Outbox()
    error = ServerOverloaded("full")
    outbox.put(0, "a")
    outbox.fail(error)
    outbox.put(0, "b")
    outbox.finish(0, finished())
    outbox.fail(ServerOverloaded("other"))
    outbox.close()
    assert outbox.error is error
    assert outbox.take() == [Piece(0, "a")]


async def test_wait_ends_with_text_end_or_time() -> None:
    outbox = Outbox()
    assert await outbox.wait(0.001) is False
    waiting = asyncio.create_task(outbox.wait(BOUND_S))
    await asyncio.sleep(0)
    outbox.put(0, "a")
    assert await waiting is True
    outbox.take()
    waiting = asyncio.create_task(outbox.wait(BOUND_S))
    await asyncio.sleep(0)
    outbox.close()
    assert await waiting is True
    await outbox.wait_ended()
