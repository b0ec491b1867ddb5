"""An app behind a real socket, in the test's own event loop; and plain sockets that speak to it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette

from gateway.server import _config, _Server, open_socket
from gateway.settings import ServerSettings
from tests.gateway.helpers_residency import BOUND_S

__all__ = ["Served", "post", "serving"]


@dataclass(frozen=True)
class Served:
    """Where the app is served."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def connect(self, receive_buffer: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A client's socket; with a small receive buffer it takes little before it stops taking anything."""
        client = socket.socket()
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (self.host, self.port))
        # The limit keeps the reader from taking more than it is asked for.
        return await asyncio.open_connection(sock=client, limit=1024)


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[Served]:
    """Serves on a free port as ``server.serve`` does, without its signals."""
    settings: ServerSettings = app.state.services.settings.server
    listener = open_socket(ServerSettings(port=0))
    server = _Server(_config(settings, app))
    started = asyncio.Event()
    server.on_started = started.set
    task = asyncio.create_task(server.serve([listener]))
    try:
        async with asyncio.timeout(BOUND_S):
            await started.wait()
        yield Served("127.0.0.1", listener.getsockname()[1])
    finally:
        server.should_exit = True
        async with asyncio.timeout(BOUND_S):
            await task


def post(path: str, body: dict[str, Any], *headers: str) -> bytes:
    """The bytes of a POST with a JSON body."""
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
    return ("\r\n".join([*lines, f"content-length: {len(content)}"]) + "\r\n\r\n").encode() + content
