"""One client's connection: uvicorn's HTTP/1.1 protocol, which also cuts clients that stopped reading.

ASGI hides the transport, so a server cannot tell a client that reads slowly from one that reads nothing, nor drop what waits
for it. Here every write that the kernel does not take at once pauses the sender (no bytes queue up in the process beyond one
write), and a paused connection whose waiting bytes have not shrunk for ``client_stall_s`` is aborted. That holds for every
route, and after the end of a response too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.corked_transport import CorkedTransport
from gateway.request_reader import RequestReader

__all__ = ["Connection", "connection_class", "connection_of"]

_EXTENSION = "innkeeper.connection"
_LOOKS_A_STALL = 4  # a stall is noticed at most a quarter late


def connection_of(scope: Scope) -> Connection | None:
    """The connection of this request; None under a server that is not ours."""
    connection: Connection | None = scope.get("extensions", {}).get(_EXTENSION)
    return connection


class Connection(RequestReader):
    """A connection that knows what waits in it."""

    client_stall_s = 60.0

    _look: asyncio.TimerHandle | None = None  # set while bytes wait
    _waited_bytes = 0
    _waited_since_s = 0.0
    _answering: RequestResponseCycle | None = None
    _lost = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        self._corked = CorkedTransport(transport, self.loop)
        self.transport = cast(asyncio.Transport, self._corked)
        self._watchers: set[Callable[[], None]] = set()
        # One that never asks anything is as idle as one that has its answer; uvicorn waits for its first byte for ever.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(Scope, self.scope)["extensions"] = {_EXTENSION: self}

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._corked.flush()  # before the request is accounted for and logged
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_looking()
        self._lost = True
        watchers, self._watchers = self._watchers, set()
        for on_lost in watchers:
            on_lost()
        # A pipelined request replaces ``cycle`` before the one before it is answered; that one must hear of this too.
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn's does not where the client reset it: all this would stay for its time

    def pause_writing(self) -> None:
        super().pause_writing()
        self._waited_bytes = self.waiting_bytes
        self._waited_since_s = self.loop.time()
        self._look_later()

    def resume_writing(self) -> None:
        self._stop_looking()
        super().resume_writing()

    def watch(self, on_lost: Callable[[], None]) -> None:
        """Calls it once, when the connection is lost; soon, if it is. To be called when the request's body has been read."""
        if self._lost:
            self.loop.call_soon(on_lost)
            return
        self._watchers.add(on_lost)
        # uvicorn stops reading at 64 KiB of a body, until the next ``receive``: what came last may have left it so, and who does
        # not read does not hear that the client has gone.
        if not self.pipeline:
            self.flow.resume_reading()

    def unwatch(self, on_lost: Callable[[], None]) -> None:
        """Idempotent."""
        self._watchers.discard(on_lost)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Drops the connection with all that waits in it."""
        self.transport.abort()

    def _look_later(self) -> None:
        self._stop_looking()
        self._look = self.loop.call_later(self.client_stall_s / _LOOKS_A_STALL, self._look_for_stall)

    def _stop_looking(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _look_for_stall(self) -> None:
        # While paused nothing is added, so the waiting bytes shrink exactly when the client takes some.
        now = self.loop.time()
        if self.waiting_bytes < self._waited_bytes:
            self._waited_bytes, self._waited_since_s = self.waiting_bytes, now
        if now - self._waited_since_s >= self.client_stall_s:
            self.abort()
        else:
            self._look_later()


def connection_class(client_stall_s: float) -> type[Connection]:
    """The protocol class for a server with this setting: uvicorn makes protocols from a class alone."""
    return type("Connection", (Connection,), {"client_stall_s": client_stall_s})
