"""Real sockets: clients that leave, clients that do not read, and clients that pipeline."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engines.wire import Event, TextRequest
from gateway import server
from gateway.connection import connection_class, connection_of
from tests.gateway.helpers_app import chat_body, make_app
from tests.gateway.helpers_residency import BOUND_S, FakeResidency, delta, finished
from tests.gateway.helpers_server import post, serving

CHAT = "/v1/chat/completions"


def endless(text: str = "x") -> FakeResidency:
    """A worker that never comes to an end, one delta an event-loop turn."""
    residency = FakeResidency()

    async def script(_request: TextRequest) -> AsyncIterator[Event]:
        while True:
            yield delta(text)
            await asyncio.sleep(0.001)

    residency.script = script
    return residency


def silent(after: str = "") -> FakeResidency:
    """A worker that says this much, and then nothing."""
    residency = FakeResidency()

    async def script(_request: TextRequest) -> AsyncIterator[Event]:
        if after:
            yield delta(after)
        await asyncio.Event().wait()
        yield finished()

    residency.script = script
    return residency


async def returned(residency: FakeResidency) -> None:
    """Until its one lease was cancelled and is back."""
    async with asyncio.timeout(BOUND_S):
        await residency.leased.wait()
        await residency.leases[0].cancelled.wait()
        await residency.leases[0].released.wait()


async def test_client_leaving_mid_stream_ends_the_lease() -> None:
    residency = endless()
    async with serving(make_app(residency)) as served:
        reader, writer = await served.connect()
        writer.write(post(CHAT, chat_body(stream=True)))
        await reader.readuntil(b'"content":"x"')
        writer.close()
        await returned(residency)


@pytest.mark.parametrize("stream", [True, False])
async def test_client_leaving_before_the_first_byte_ends_the_lease(stream: bool) -> None:
    residency = silent()
    async with serving(make_app(residency)) as served:
        _, writer = await served.connect()
        writer.write(post(CHAT, chat_body(stream=stream)))
        async with asyncio.timeout(BOUND_S):
            await residency.leased.wait()
        writer.close()
        await returned(residency)


async def test_client_leaving_while_its_body_is_read_is_nobodys_error(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(make_app(endless())) as served:
        _, writer = await served.connect()
        writer.write(post(CHAT, chat_body())[:-5])
        await writer.drain()
        writer.close()
        async with httpx.AsyncClient(base_url=served.url, timeout=BOUND_S) as client:
            assert (await client.get("/health")).status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_pipelining_client_leaving_ends_the_lease_of_its_first_request() -> None:
    residency = endless()
    async with serving(make_app(residency)) as served:
        reader, writer = await served.connect()
        request = post(CHAT, chat_body(stream=True))
        writer.write(request + request)
        await reader.readuntil(b'"content":"x"')
        writer.transport.abort()
        await returned(residency)


async def test_client_that_reads_nothing_is_cut_after_the_stall() -> None:
    residency = silent(after="x" * 3 * 2**20)  # more than the kernel takes, less than what may wait
    async with serving(make_app(residency, client_stall_s=0.2)) as served:
        reader, writer = await served.connect(receive_buffer=4096)
        writer.write(post(CHAT, chat_body(stream=True)))
        async with asyncio.timeout(BOUND_S):
            await residency.leased.wait()
        await returned(residency)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            while True:
                await reader.readexactly(1024)
        writer.close()


async def test_client_that_reads_nothing_is_cut_on_any_route_and_after_the_answer() -> None:
    cut = asyncio.Event()

    async def large(request: Request) -> Response:
        connection = connection_of(request.scope)
        assert connection is not None
        connection.watch(cut.set)
        return Response(b"x" * 32 * 2**20)

    app = make_app(client_stall_s=0.2)
    app.router.routes.append(Route("/v1/large", large))
    async with serving(app) as served:
        reader, writer = await served.connect(receive_buffer=4096)
        writer.write(b"GET /v1/large HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        # Reading nothing more, until the server gave up; what it had sent by then is still there, and then the end.
        async with asyncio.timeout(BOUND_S):
            await cut.wait()
        received = 0
        with pytest.raises(ConnectionError):
            while data := await reader.read(2**20):
                received += len(data)
            raise ConnectionError
        assert received < 32 * 2**20
        writer.close()


async def test_connection_that_never_asks_is_closed_like_an_idle_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_KEEP_ALIVE_S", 0.05)
    async with serving(make_app()) as served:
        reader, writer = await served.connect()
        async with asyncio.timeout(BOUND_S):
            assert await reader.read() == b""
        writer.close()


async def test_connection_that_is_reset_leaves_no_timer_behind() -> None:
    connections = []
    lost = asyncio.Event()

    async def short(request: Request) -> Response:
        connection = connection_of(request.scope)
        assert connection is not None
        connections.append(connection)
        connection.watch(lost.set)
        return Response(b"short")

    app = make_app()
    app.router.routes.append(Route("/v1/short", short))
    async with serving(app) as served:
        reader, writer = await served.connect()
        writer.write(b"GET /v1/short HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"short")
        assert connections[0].timeout_keep_alive_task is not None
        client: socket.socket = writer.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        async with asyncio.timeout(BOUND_S):
            await lost.wait()
        assert connections[0].timeout_keep_alive_task is None


async def test_client_that_reads_slowly_gets_everything() -> None:
    text = "Q" * 50_000
    residency = FakeResidency(*[delta(text)] * 20, finished())
    async with serving(make_app(residency, client_stall_s=0.3)) as served:
        reader, writer = await served.connect(receive_buffer=4096)
        writer.write(post(CHAT, chat_body(stream=True), "connection: close"))
        received = bytearray()
        async with asyncio.timeout(60):
            while data := await reader.read(16_384):
                received += data
                await asyncio.sleep(0.001)
        writer.close()
    assert received.count(b"Q") == 20 * 50_000
    assert b"[DONE]" in received


async def test_keepalive_reaches_the_client_and_real_status_before_it() -> None:
    residency = FakeResidency(delta("late"), finished())
    residency.admit = asyncio.Event()
    async with serving(make_app(residency, keepalive_s=0.02)) as served:
        reader, writer = await served.connect()
        writer.write(post(CHAT, chat_body(stream=True)))
        async with asyncio.timeout(BOUND_S):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert b"x-accel-buffering: no" in head
            await reader.readuntil(b": keep-alive")
            residency.admit.set()
            await reader.readuntil(b"late")
            await reader.readuntil(b"[DONE]")
        writer.close()


async def test_refused_body_leaves_the_connection_usable() -> None:
    async with (
        serving(make_app(FakeResidency(delta("hi"), finished()), max_body_bytes=1000)) as served,
        httpx.AsyncClient(base_url=served.url, timeout=BOUND_S) as client,
    ):
        large = await client.post(CHAT, content=b"x" * 200_000, headers={"content-type": "application/json"})
        small = await client.post(CHAT, json=chat_body())
    assert (large.status_code, small.status_code) == (413, 200)


def test_connection_class_carries_the_setting() -> None:
    assert connection_class(7.0).client_stall_s == 7.0
