"""When the client of a request leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Receive, Scope

from gateway.connection import connection_of

__all__ = ["Departure"]


class Departure:
    """Calls ``on_leave`` once, when the client has left, unless ``unwatch`` came first.

    To be made when the request's body has been read. Our own connection knows by itself when it is lost; another server is asked
    by a task that awaits ASGI's ``http.disconnect``.
    """

    def __init__(self, scope: Scope, receive: Receive, on_leave: Callable[[], None]) -> None:
        self._on_leave: Callable[[], None] | None = on_leave
        self._task: asyncio.Task[None] | None = None
        self._connection = connection_of(scope)
        if self._connection is not None:
            self._connection.watch(self.leave)
        else:
            self._task = asyncio.create_task(self._wait(receive))

    def leave(self) -> None:
        """The client has left, or is treated as if it had."""
        on_leave, self._on_leave = self._on_leave, None
        if on_leave is not None:
            on_leave()

    def unwatch(self) -> None:
        """Idempotent."""
        self._on_leave = None
        if self._connection is not None:
            self._connection.unwatch(self.leave)
        if self._task is not None:
            self._task.cancel()

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.leave()
