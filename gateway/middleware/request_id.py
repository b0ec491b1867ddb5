"""A name for each request: the client's ``x-request-id`` where it is a plain one, else a new one.

Anthropic's clients read it from ``request-id``, so its routes answer with both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.middleware.headers import add_headers, header
from gateway.protocols.envelopes import is_anthropic

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
        names = (b"x-request-id", b"request-id") if is_anthropic(scope["path"]) else (b"x-request-id",)
        headers = [(name, request_id.encode()) for name in names]

        def send_named(message: Message) -> Awaitable[None]:
            add_headers(message, *headers)
            return send(message)

        return self._app(scope, receive, send_named)
