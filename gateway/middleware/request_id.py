"""A name for each request: the client's ``x-request-id`` where it is a plain one, else a new one."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.middleware.headers import add_headers, header

__all__ = ["RequestId"]

_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,128}")


class RequestId:
    """Puts ``state["request_id"]`` into the scope and ``x-request-id`` into the answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        given = header(scope, b"x-request-id")
        request_id = given if given and _PLAIN.fullmatch(given) else f"req_{os.urandom(16).hex()}"
        scope.setdefault("state", {})["request_id"] = request_id

        def send_named(message: Message) -> Awaitable[None]:
            add_headers(message, (b"x-request-id", request_id.encode()))
            return send(message)

        return self._app(scope, receive, send_named)
