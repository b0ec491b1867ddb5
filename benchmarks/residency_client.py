"""A load generator that costs little: one thread, raw sockets, requests and answers as bytes.

On a machine of few cores the client shares them with what it measures, so it parses only what it must: where an answer ends.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

__all__ = ["Exchange", "Load", "closed_loop", "exchange", "post"]

_READ_BYTES = 256 * 1024
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_EVENT = b"data: {"


@dataclass
class Load:
    """What a run brought: answers, their server-sent events, seconds."""

    answers: int = 0
    events: int = 0
    seconds: float = 0.0

    @property
    def answers_per_s(self) -> float:
        return self.answers / self.seconds

    @property
    def events_per_s(self) -> float:
        return self.events / self.seconds


def post(url: str, path: str, body: dict[str, Any]) -> bytes:
    """A POST of this JSON as it goes over the wire."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


class Exchange:
    """One kept connection, on which a request is sent as often as asked. SystemExit when an answer is not a 200."""

    def __init__(self, url: str, request: bytes) -> None:
        address = urlsplit(url)
        self.socket = socket.create_connection((address.hostname, address.port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = request
        self._parts: list[bytes] = []
        self._tail = b""
        self._missing: int | None = None  # bytes; None: chunked, or the head is not in yet
        self._headed = False

    def send(self) -> None:
        self._parts, self._tail, self._missing, self._headed = [], b"", None, False
        self.socket.sendall(self._request)

    def receive(self) -> bool:
        """One read; True when the answer is whole."""
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise SystemExit(f"the server closed the connection after {b''.join(self._parts)[-300:]!r}")
        self._parts.append(data)
        if not self._headed:
            self._read_head()
        elif self._missing is not None:
            self._missing -= len(data)
        if self._missing is not None:
            return self._missing <= 0
        self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
        return self._headed and self._tail == _LAST_CHUNK

    def _read_head(self) -> None:
        head, end, rest = b"".join(self._parts).partition(b"\r\n\r\n")
        if not end:
            return
        self._headed = True
        status, *lines = head.lower().split(b"\r\n")
        if b" 200 " not in status + b" ":
            raise SystemExit(f"the server answered {head.decode()}\n{rest.decode()}")
        for line in lines:
            if line.startswith(b"content-length:"):
                self._missing = int(line.partition(b":")[2]) - len(rest)

    @property
    def answer(self) -> bytes:
        """The bytes of the last answer, with head and framing."""
        return b"".join(self._parts)

    @property
    def events(self) -> int:
        return sum(part.count(_EVENT) for part in self._parts)

    def close(self) -> None:
        self.socket.close()


def exchange(connection: Exchange) -> float:
    """One request and its whole answer: seconds."""
    began = time.perf_counter()
    connection.send()
    while not connection.receive():
        pass
    return time.perf_counter() - began


def closed_loop(url: str, request: bytes, *, connections: int, seconds: float) -> Load:
    """``connections`` clients, each of which asks again as soon as it is answered. Answers begun in time are waited for."""
    load = Load()
    clients = [Exchange(url, request) for _ in range(connections)]
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
        began = time.perf_counter()
        for client in clients:
            client.send()
        under_way = connections
        while under_way:
            for key, _ in selector.select():
                client = key.data
                if not client.receive():
                    continue
                load.answers += 1
                load.events += client.events
                if time.perf_counter() - began < seconds:
                    client.send()
                else:
                    under_way -= 1
        load.seconds = time.perf_counter() - began
    for client in clients:
        client.close()
    return load
