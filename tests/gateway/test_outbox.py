"""What waits between a worker and its client."""

from __future__ import annotations

import asyncio

from engines.wire import TokenLogprob
from gateway.errors import ServerOverloaded
from gateway.outbox import Outbox
from gateway.protocols.piece import ArgumentsPiece, CallPiece, EndPiece, TextPiece, ThoughtPiece
from tests.gateway.helpers_residency import BOUND_S, finished


async def test_deltas_stay_apart_until_many_wait() -> None:
    outbox = Outbox(separate=3)
    end = finished()
    for index, text in ((0, "a"), (1, "x"), (0, "b"), (0, "c"), (1, "y"), (2, "p"), (2, "q")):
        outbox.put(TextPiece(index, text))
    outbox.put(EndPiece(0, end))
    assert outbox.take() == [
        TextPiece(0, "a"),
        TextPiece(1, "xy"),
        TextPiece(0, "bc"),
        TextPiece(2, "pq"),
        EndPiece(0, end),
    ]
    outbox.put(TextPiece(0, "d"))
    assert outbox.take() == [TextPiece(0, "d")]


async def test_text_of_a_choice_joins_and_choices_keep_their_order() -> None:
    outbox = Outbox(separate=0)
    for index, text in ((1, "a"), (0, "x"), (1, "b"), (0, ""), (0, "é")):
        outbox.put(TextPiece(index, text))
    end = finished()
    outbox.put(EndPiece(1, end))
    assert outbox.waiting_bytes == 6
    assert outbox.take() == [TextPiece(1, "ab"), TextPiece(0, "xé"), EndPiece(1, end)]
    assert outbox.take() == []
    assert outbox.waiting_bytes == 0


async def test_log_probabilities_stay_with_their_text() -> None:
    outbox = Outbox(separate=1)
    a, b, c = (TokenLogprob(i, b"x", -1.0) for i in range(3))
    outbox.put(TextPiece(0, "a", (a,)))
    assert outbox.waiting_bytes > 1
    outbox.put(TextPiece(0, "b", (b,)))  # joins
    outbox.put(TextPiece(0, "", (c,)))  # a token whose text came before
    outbox.put(TextPiece(0, "", ()))  # nothing
    assert outbox.take() == [TextPiece(0, "ab", (a, b, c))]
    outbox.put(TextPiece(0, "d"))
    outbox.put(TextPiece(0, "e", (a,)))
    assert outbox.take() == [TextPiece(0, "de", (a,))]
    assert outbox.waiting_bytes == 0


async def test_thinking_and_arguments_join_like_text_and_nothing_else_does() -> None:
    outbox = Outbox(separate=0)
    pieces = (
        ThoughtPiece(0, "h"),
        ThoughtPiece(0, "m"),
        TextPiece(0, "so"),
        CallPiece(0, 0, "c0", "f"),
        ArgumentsPiece(0, 0, ""),
        ArgumentsPiece(0, 0, "{"),
        ArgumentsPiece(0, 0, "}"),
        CallPiece(0, 1, "c1", "f"),
        ArgumentsPiece(0, 1, "{}"),
    )
    for piece in pieces:
        outbox.put(piece)
    assert outbox.waiting_bytes == 2 + 2 + 3 + 2 + 3 + 2
    assert outbox.take() == [
        ThoughtPiece(0, "hm"),
        TextPiece(0, "so"),
        CallPiece(0, 0, "c0", "f"),
        ArgumentsPiece(0, 0, "{}"),
        CallPiece(0, 1, "c1", "f"),
        ArgumentsPiece(0, 1, "{}"),
    ]


async def test_nothing_follows_the_end() -> None:
    outbox = Outbox()
    error = ServerOverloaded("full")
    outbox.put(TextPiece(0, "a"))
    outbox.fail(error)
    outbox.put(TextPiece(0, "b"))
    outbox.put(EndPiece(0, finished()))
    outbox.fail(ServerOverloaded("other"))
    outbox.close()
    assert outbox.error is error
    assert outbox.take() == [TextPiece(0, "a")]


async def test_wait_ends_with_text_end_or_time() -> None:
    outbox = Outbox()
    assert await outbox.wait(0.001) is False
    waiting = asyncio.create_task(outbox.wait(BOUND_S))
    await asyncio.sleep(0)
    outbox.put(TextPiece(0, "a"))
    assert await waiting is True
    outbox.take()
    waiting = asyncio.create_task(outbox.wait(BOUND_S))
    await asyncio.sleep(0)
    outbox.close()
    assert await waiting is True
    await outbox.wait_ended()
