"""An unstreamed answer that takes a while and holds no lease: its work ends when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.departure import Departure
from gateway.errors import GatewayError
from gateway.live import LiveResponses

__all__ = ["WatchedResponse"]


class WatchedResponse:
    """An ASGI app that answers one request with the response that ``work`` makes.

    What ``work`` raises is raised from the call. A client that leaves cancels it, and so does ``end_with``, for a shutdown.
    """

    def __init__(self, live: LiveResponses, work: Callable[[], Awaitable[Response]]) -> None:
        self._live = live
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._left = False
        self._error: GatewayError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._task = asyncio.current_task()
        assert self._task is not None
        departure = Departure(scope, receive, self._leave)
        self._live.add(self)
        try:
            response = await self._work()
            departure.unwatch()
            await response(scope, receive, send)
        except asyncio.CancelledError:
            if not (self._left or self._error) or self._task.uncancel() > 0:
                raise
            if self._error is not None:
                raise self._error from None
        finally:
            departure.unwatch()
            self._live.discard(self)

    def end_with(self, error: GatewayError) -> None:
        """Ends it with this error now. Idempotent."""
        if self._error is None and self._task is not None:
            self._error = error
            self._task.cancel()

    def _leave(self) -> None:
        self._left = True
        if self._task is not None:
            self._task.cancel()
