"""Refuses requests for a host name that a web page pointed at this machine (DNS rebinding).

A page at ``evil.example`` whose name resolves to 127.0.0.1 is same-origin with what answers there, so neither CORS nor the
origin guard sees it; its Host header still says ``evil.example``. On a loopback bind only loopback names, the names by
which containers know their host, and ``server.allowed_hosts`` are served. A bind to the network needs keys, which such a
page does not have.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import Forbidden
from gateway.middleware.headers import headers
from gateway.network import is_loopback, split_host

__all__ = ["HostGuard"]

_CONTAINER_HOST = "host.docker.internal"
_REMEMBERED = 64


class HostGuard:
    """Raises Forbidden (host_not_allowed). Off when the server is bound to the network."""

    def __init__(self, app: ASGIApp, bound_to: str, allowed_hosts: tuple[str, ...]) -> None:
        self._app = app
        self._on = is_loopback(bound_to)
        self._allowed = frozenset(split_host(name)[0] for name in allowed_hosts) | {_CONTAINER_HOST}
        self._allows = lru_cache(maxsize=_REMEMBERED)(self._judge)  # clients name a host or two, in every request

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if self._on and scope["type"] == "http":
            self._check(scope)
        return self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        values = headers(scope, b"host")
        for value in values or [""]:
            if not self._allows(value):
                message = f"host {value[:100]!r} is not allowed; add its name to server.allowed_hosts to serve it"
                raise Forbidden(message, code="host_not_allowed")

    def _judge(self, value: str) -> bool:
        name, _port = split_host(value)
        return is_loopback(name) or name in self._allowed
