"""The server process: how it starts, why it does not, and how each signal ends it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.server import StartError, check_bind, open_socket
from gateway.settings import ApiKey, ServerSettings
from tests.blackbox.helpers_gateway import running_gateway
from tests.gateway.helpers_app import chat_body

START_S = 30.0  # of a process, on a busy machine
CHAT = "/v1/chat/completions"


class Process:
    """A server process and a client for it."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.client = httpx.AsyncClient(base_url=url, timeout=START_S)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exit_status(self, within_s: float) -> int:
        async with asyncio.timeout(within_s):
            return await self.process.wait()

    async def stream(self, model: str = "a") -> AsyncIterator[str]:
        """The lines of an endless stream."""
        async with self.client.stream("POST", CHAT, json=chat_body(model=model, stream=True)) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                yield line


def server(**settings: Any) -> AbstractAsyncContextManager[Process]:
    """A server over a fake residency."""
    return started("-m", "tests.gateway.helpers_fake_server", json.dumps({"port": 0, **settings}))


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[Process]:
    """A started server, killed at the end unless it is gone."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            line = (await process.stdout.readline()).decode()
        found = re.fullmatch(r"Innkeeper is ready at (http://127\.0\.0\.1:[0-9]+)\n", line)
        assert found, line
        running = Process(process, found[1])
        async with running.client:
            yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def refusal_of_new_work(running: Process) -> httpx.Response:
    """The answer to new work once the server has seen the signal."""
    async with asyncio.timeout(START_S):
        while (await running.client.get("/ready")).status_code == 200:
            pass  # each round trip gives it time
    return await running.client.post(CHAT, json=chat_body())


async def ended_by_shutdown(lines: AsyncIterator[str]) -> None:
    """Reads the stream to its end, which must say that the server is shutting down."""
    async with asyncio.timeout(START_S):
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["error"]["code"] == "shutting_down"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_without_leases_exits_at_once_with_0(number: signal.Signals) -> None:
    async with server(shutdown_grace_s=300) as running:
        assert (await running.client.get("/health")).status_code == 200
        running.signal(number)
        assert await running.exit_status(within_s=START_S) == 0


async def test_sigterm_ends_streams_within_the_grace() -> None:
    async with server(shutdown_grace_s=5) as running:
        lines = running.stream()
        assert "assistant" in await anext(lines)
        began = time.monotonic()
        running.signal(signal.SIGTERM)
        await ended_by_shutdown(lines)
        assert time.monotonic() - began >= 1.9  # streams end 3 s before the grace does
        assert await running.exit_status(within_s=START_S) == 0


async def test_sigterm_answers_a_request_whose_body_is_still_on_the_way() -> None:
    async with server() as running:
        port = running.client.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        )
        writer.write(head.encode() + b"{")
        assert (await running.client.get("/health")).status_code == 200
        running.signal(signal.SIGTERM)
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 503 ") and b'"code":"shutting_down"' in answer
        assert await running.exit_status(within_s=START_S) == 0


async def test_second_sigterm_skips_the_grace() -> None:
    async with server(shutdown_grace_s=300) as running:
        lines = running.stream()
        await anext(lines)
        running.signal(signal.SIGTERM)
        await refusal_of_new_work(running)
        running.signal(signal.SIGTERM)
        await ended_by_shutdown(lines)
        assert await running.exit_status(within_s=START_S) == 0


async def test_sigterm_refuses_new_work_and_exits_when_the_last_client_leaves() -> None:
    async with server(shutdown_grace_s=300) as running:
        lines = running.stream()
        await anext(lines)
        running.signal(signal.SIGTERM)
        refusal = await refusal_of_new_work(running)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (503, "shutting_down")
        assert "retry-after" in refusal.headers
        assert (await running.client.get("/ready")).status_code == 503
        assert (await running.client.get("/health")).status_code == 200
        await lines.aclose()  # type: ignore[attr-defined]
        assert await running.exit_status(within_s=START_S) == 0


async def test_sighup_reloads_or_says_so_and_serves_on() -> None:
    async with server() as running:
        running.signal(signal.SIGHUP)
        assert (await running.client.get("/health")).status_code == 200
        assert running.process.returncode is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_bind_to_network_without_keys_refuses_and_says_how(host: str) -> None:
    with pytest.raises(StartError, match=r"server\.api_keys.*127\.0\.0\.1"):
        check_bind(ServerSettings(host=host, port=0))


def test_bind_to_network_with_keys_and_to_loopback_without() -> None:
    check_bind(ServerSettings(host="0.0.0.0", api_keys=(ApiKey("k"),)))
    for host in ("127.0.0.1", "::1", "localhost"):
        check_bind(ServerSettings(host=host))


@pytest.mark.parametrize("host", ["no.such.name.invalid", "a..b", "é" * 300])
def test_bind_to_no_address_says_so(host: str) -> None:
    with pytest.raises(StartError, match="not an address"):
        check_bind(ServerSettings(host=host))


def test_open_socket_in_use_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(StartError, match=r"in use.*--port"):
        open_socket(ServerSettings(port=other.getsockname()[1]))


def test_open_socket_of_another_machine_says_so() -> None:
    with pytest.raises(StartError, match="no such address"):
        open_socket(ServerSettings(host="192.0.2.1", port=0))


async def test_start_refused_is_a_message_and_status_1() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.gateway.helpers_fake_server", json.dumps({"host": "0.0.0.0", "port": 0}),
        stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    async with asyncio.timeout(START_S):
        _, told = await process.communicate()
    assert process.returncode == 1
    assert told.decode().startswith("server.host 0.0.0.0 can be reached from other machines")


REGISTRY = """
server: {port: 0, shutdown_grace_s: 5, keepalive_s: 0.2}
memory: {budget: 10GiB, device: 16GiB}
models:
  - {id: slow, source: "sim:", simulate: {weights: 1GiB, tokens_per_s: 20}}
  - {id: prefilling, source: "sim:", simulate: {weights: 1GiB, ttft_s: 1000}}
  - {id: loading, source: "sim:", simulate: {weights: 1GiB, load_s: 1000}}
"""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text() if Path("/proc/self").exists() else True


@pytest.mark.parametrize("model", ["slow", "prefilling", "loading"])
async def test_sigterm_with_real_workers_ends_streams_and_leaves_no_process(model: str, tmp_path: Path) -> None:
    registry = tmp_path / "registry.yaml"
    registry.write_text(REGISTRY)
    async with started("-m", "gateway.cli", "serve", "--registry", str(registry)) as running:
        lines = running.stream(model)
        await anext(lines)  # text, or the first keep-alive
        workers = [worker["pid"] for worker in (await running.client.get("/admin/status")).json()["workers"]]
        assert workers
        running.signal(signal.SIGTERM)
        await ended_by_shutdown(lines)
        assert await running.exit_status(within_s=START_S) == 0
        assert not [pid for pid in workers if is_running(pid)]


@pytest.mark.skipif(sys.platform != "linux", reason="the gateway's helper reads /proc")
async def test_sigterm_cuts_a_client_that_reads_nothing_and_calls_it_no_error(tmp_path: Path) -> None:
    text = 'server: {shutdown_grace_s: 3}\nmodels: [{id: a, source: "sim:", simulate: {weights: 1MiB}}]\n'
    body = json.dumps(chat_body(stream=True, max_tokens=60_000))  # more than sockets take, less than what may wait
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with running_gateway(tmp_path, text) as gateway:
            url = gateway.client.base_url
            client.connect((url.host, url.port))
            client.sendall(
                f"POST {CHAT} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            await gateway.transition("a", "loaded")
            await gateway.quiet()  # the worker is done, and the client has not read it
        log = (tmp_path / "gateway.log").read_text()
    assert "ending answers under way" in log and "outcome=cancelled" in log
    assert " error " not in log and "Traceback" not in log
