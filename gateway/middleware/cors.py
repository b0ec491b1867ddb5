"""CORS by allow-list, on every answer that comes out below: errors and streams too.

Credentials (cookies) are never allowed; keys travel in headers, which need none. With ``*`` in the list every origin may read,
and the answer says ``*``. A preflight is answered here, before any key is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Forbidden
from gateway.middleware.error_boundary import send_error
from gateway.middleware.headers import add_headers, header

__all__ = ["Cors"]

_METHODS = b"GET, HEAD, POST, DELETE, OPTIONS"
_EXPOSED = b"x-request-id, x-innkeeper-ignored, x-should-retry, retry-after"
_MAX_AGE_S = b"600"
_HEADER_LIST = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,2000}")


class Cors:
    """Answers preflights; adds headers for origins in the list."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        origin = header(scope, b"origin")
        allowed = self._headers(origin)

        def send_allowed(message: Message) -> Awaitable[None]:
            add_headers(message, *allowed)
            return send(message)

        is_preflight = scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method") is not None
        if origin is None or not is_preflight:
            return self._app(scope, receive, send_allowed if allowed else send)
        return self._answer_preflight(origin, scope, send_allowed)

    async def _answer_preflight(self, origin: str, scope: Scope, send: Send) -> None:
        if self._allows(origin):
            await send({"type": "http.response.start", "status": 204, "headers": _preflight(scope)})
            await send({"type": "http.response.body", "body": b""})
        else:
            refusal = Forbidden(f"origin {origin[:100]!r} is not in server.cors_origins", code="origin_not_allowed")
            await send_error(refusal, scope, send)

    def _allows(self, origin: str) -> bool:
        return "*" in self._origins or origin in self._origins

    def _headers(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        if not self._origins:
            return []
        if "*" in self._origins:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _EXPOSED)]
        headers = [(b"vary", b"Origin")]  # also when this origin is not allowed: a cache must not mix the two
        if origin is not None and origin in self._origins:
            headers.append((b"access-control-allow-origin", origin.encode("latin-1")))
            headers.append((b"access-control-expose-headers", _EXPOSED))
        return headers


def _preflight(scope: Scope) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-max-age", _MAX_AGE_S),
    ]
    wanted = header(scope, b"access-control-request-headers")
    if wanted and _HEADER_LIST.fullmatch(wanted):
        headers.append((b"access-control-allow-headers", wanted.encode()))
    if header(scope, b"access-control-request-private-network") == "true":
        headers.append((b"access-control-allow-private-network", b"true"))
    return headers
