"""The events of a background run, for one client: from any place on, to the run's end."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from gateway.responses import Run

__all__ = ["RunView"]

_KEEPALIVE = b": keep-alive\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class RunView:
    """An ASGI app that answers one request. A client that leaves ends the view, and not the run."""

    def __init__(self, run: Run, place: int, keepalive_s: float) -> None:
        self._run = run
        self._place = place
        self._keepalive_s = keepalive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body"})
            return
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.wait((sending, gone))
        if not sending.cancelled():
            sending.result()

    async def _send(self, send: Send) -> None:
        run = self._run
        more = True
        while more:
            events = await run.watch(self._place, self._keepalive_s)
            self._place += len(events)
            more = not run.ended or self._place < len(run.events)
            await send({"type": "http.response.body", "body": b"".join(events) or _KEEPALIVE, "more_body": more})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
