"""Refuses what a page of another site asks to be changed.

A browser sends a ``text/plain`` POST to any site without a preflight; CORS only keeps the page from reading the answer. So an
unsafe method, and any call of ``/admin``, is refused when its ``Origin`` is neither this server's own nor allowed, or when
there is no Origin and ``Sec-Fetch-Site`` says that it comes from another site.
"""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import Forbidden
from gateway.middleware.headers import header, headers
from gateway.network import same_origin

__all__ = ["OriginGuard"]

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class OriginGuard:
    """Raises Forbidden (origin_not_allowed). ``*`` among the origins opens everything but ``/admin``."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            is_admin = scope["path"] == "/admin" or scope["path"].startswith("/admin/")
            if is_admin or scope["method"] not in _SAFE_METHODS:
                self._check(scope, is_admin)
        return self._app(scope, receive, send)

    def _check(self, scope: Scope, is_admin: bool) -> None:
        origins = headers(scope, b"origin")
        for origin in origins:
            if not self._allows(origin, scope, is_admin):
                message = f"origin {origin[:100]!r} is not allowed; add it to server.cors_origins to let its pages in"
                raise Forbidden(message, code="origin_not_allowed")
        if not origins and header(scope, b"sec-fetch-site") == "cross-site":
            raise Forbidden("a page of another site may not do this", code="origin_not_allowed")

    def _allows(self, origin: str, scope: Scope, is_admin: bool) -> bool:
        if origin in self._origins or ("*" in self._origins and not is_admin):
            return True
        return same_origin(origin, header(scope, b"host") or "")
