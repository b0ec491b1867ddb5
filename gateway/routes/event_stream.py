"""``/admin/events`` as an ASGI answer: what a watcher's subscription holds, for as long as its client stays.

A client that is too slow is cut: by its connection when it takes nothing for ``client_stall_s``, here when its buffer is full,
so that it notices the gap. At the gateway's end the stream ends.
"""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope, Send

from gateway.connection import connection_of
from gateway.protocols.admin import event_bytes
from gateway.residency.event_feed import EventFeed, Subscription

__all__ = ["EventStream"]

_KEEPALIVE = b": keep-alive\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """An ASGI app that answers one request. A keep-alive follows each ``keepalive_s`` of silence."""

    def __init__(self, feed: EventFeed, keepalive_s: float) -> None:
        self._feed = feed
        self._keepalive_s = keepalive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": _HEADERS}
        if scope["method"] == "HEAD":
            await send(start)
            await send({"type": "http.response.body"})
            return
        with self._feed.watch() as watcher:
            await send(start)
            sending = asyncio.create_task(self._send(watcher, send))
            gone = asyncio.create_task(_wait_for_disconnect(receive))
            try:
                await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, gone):
                    task.cancel()
                await asyncio.wait((sending, gone))
        if watcher.behind and (connection := connection_of(scope)) is not None:
            connection.abort()
        if not sending.cancelled():
            sending.result()

    async def _send(self, watcher: Subscription, send: Send) -> None:
        body = _KEEPALIVE  # at once, so that the client knows that it watches
        while True:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            if watcher.behind:
                return
            if not await watcher.wait(self._keepalive_s):
                body = _KEEPALIVE
                continue
            body = b"".join(map(event_bytes, watcher.take()))
            if watcher.ended and not watcher.behind:
                await send({"type": "http.response.body", "body": body})
                return


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
