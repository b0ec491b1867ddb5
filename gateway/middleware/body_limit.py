"""The bytes a request's body may have: refused at its announced length, or as they are counted."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import RequestTooLarge
from gateway.middleware.headers import header

__all__ = ["BodyLimit"]

_AUDIO = "/v1/audio/"


class BodyLimit:
    """Raises RequestTooLarge, from the call or from ``receive``; audio routes have a limit of their own."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_audio_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._max_audio_bytes = max_audio_bytes

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        limit = self._max_audio_bytes if scope["path"].startswith(_AUDIO) else self._max_bytes
        announced = header(scope, b"content-length")
        if announced is not None and announced.isdecimal() and int(announced) > limit:
            raise _too_large(limit)
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > limit:
                    raise _too_large(limit)
            return message

        return self._app(scope, receive_counted, send)


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(f"the body is larger than {limit} bytes, which server.max_body allows")
