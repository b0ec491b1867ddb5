"""One log line a request, written when it has ended; and its count in the metrics. Never the query, a key or a prompt."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.logs import log_event, notes_of
from gateway.metrics import Metrics

__all__ = ["CLIENT_LEFT", "AccessLog"]

CLIENT_LEFT = 499  # the status logged for a request whose client left before an answer began
_QUIET = frozenset({"/health", "/ready", "/metrics", "/v1/metrics"})  # polled for ever: debug level

logger = logging.getLogger("innkeeper.access")


class AccessLog:
    """Logs method, path, status, seconds, client, and what the route noted (``logs.note``)."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        status = CLIENT_LEFT

        def send_watched(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            return send(message)

        try:
            await self._app(scope, receive, send_watched)
        finally:
            self._write(scope, status, time.perf_counter() - began_s)

    def _write(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        self._metrics.requested(getattr(route, "path", "none"), scope["method"], status)
        level = logging.DEBUG if scope["path"] in _QUIET else logging.INFO
        client = scope.get("client")
        log_event(
            logger,
            level,
            "request",
            id=scope["state"].get("request_id"),
            method=scope["method"],
            path=scope["path"],
            status=status,
            seconds=seconds,
            client=scope["state"].get("client") or (client[0] if client else None),
            **notes_of(scope),
        )
