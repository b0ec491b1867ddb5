"""Over real sockets: heads that offer another protocol, and heads without end."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from gateway.request_reader import MAX_HEAD_BYTES
from tests.gateway.helpers_app import chat_body, make_app
from tests.gateway.helpers_residency import BOUND_S, FakeResidency, delta, finished
from tests.gateway.helpers_server import post, serving

CHAT = "/v1/chat/completions"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"


def talking() -> FakeResidency:
    return FakeResidency(delta("hello"), finished())


def offering(request: bytes, offer: bytes = OFFER) -> bytes:
    line, rest = request.split(b"\r\n", 1)
    return line + b"\r\n" + offer + rest


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Status line and body of one answer with a content-length."""
    async with asyncio.timeout(BOUND_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return head.split(b"\r\n")[0], await reader.readexactly(int(length.split(b":")[1]))


@pytest.mark.parametrize("size", [10**6, 100, 1], ids=["whole", "in pieces", "bytewise"])
async def test_offer_of_another_protocol_is_declined_and_the_request_served(size: int) -> None:
    async with serving(make_app(talking())) as served:
        reader, writer = await served.connect()
        request = offering(post(CHAT, chat_body()))
        for start in range(0, len(request), size):
            writer.write(request[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        status, body = await read_answer(reader)
        assert status == b"HTTP/1.1 200 OK"
        assert json.loads(body)["choices"][0]["message"]["content"] == "hello"
        # The connection goes on, with and without another offer; a pipelined request waits its turn.
        writer.write(post(CHAT, chat_body()) + offering(post(CHAT, chat_body())) + post(CHAT, chat_body()))
        for _ in range(3):
            assert (await read_answer(reader))[0] == b"HTTP/1.1 200 OK"
        writer.close()


async def test_offer_with_close_closes() -> None:
    async with serving(make_app(talking())) as served:
        reader, writer = await served.connect()
        writer.write(offering(post(CHAT, chat_body()), b"Connection: close, Upgrade\r\nUpgrade: websocket\r\n"))
        async with asyncio.timeout(BOUND_S):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 OK") and answer.count(b"HTTP/1.1") == 1
        writer.close()


@pytest.mark.parametrize(
    "start", [b"GET /", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "], ids=["target", "header"]
)
async def test_head_without_end_is_refused(start: bytes) -> None:
    async with serving(make_app(talking())) as served:
        reader, writer = await served.connect()
        writer.write(start)
        await writer.drain()
        async with asyncio.timeout(BOUND_S):
            answering = asyncio.create_task(reader.read())
            while not answering.done():
                writer.write(b"a" * 8192)
                await asyncio.wait([answering], timeout=0.001)
            with contextlib.suppress(ConnectionError):  # closed with bytes unread, which the system tells as a reset
                assert (await answering).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_head_in_a_large_chunk_after_a_body_is_served() -> None:
    """Bytes of the body before it do not count against a head."""
    async with serving(make_app(talking())) as served:
        reader, writer = await served.connect()
        body = chat_body(messages=[{"role": "user", "content": "x" * 3 * MAX_HEAD_BYTES}])
        second = post(CHAT, chat_body())
        writer.write(post(CHAT, body) + second[:50])
        assert (await read_answer(reader))[0] == b"HTTP/1.1 200 OK"
        writer.write(second[50:])
        assert (await read_answer(reader))[0] == b"HTTP/1.1 200 OK"
        writer.close()


async def test_connect_is_no_request() -> None:
    async with serving(make_app(talking())) as served:
        reader, writer = await served.connect()
        writer.write(b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(BOUND_S):
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
