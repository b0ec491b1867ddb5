"""Keys and what they may do. Default deny: a path that is not open needs a key, and ``/admin`` one with the admin scope.

A key comes as ``Authorization: Bearer KEY`` or ``x-api-key: KEY``, on every route. Without configured keys everything is
allowed, and whatever Authorization a client insists on sending is ignored.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import Forbidden, InvalidApiKey
from gateway.middleware.headers import headers
from gateway.settings import ApiKey

__all__ = ["OPEN_PATHS", "Auth", "required_scopes"]

OPEN_PATHS = frozenset({"/health", "/ready"})
# Served to any key, since neither an app's key nor an operator's should be refused them.
_ANY_SCOPE_PATHS = frozenset({"/", "/metrics", "/v1/metrics", "/openapi.json"})


def required_scopes(path: str) -> frozenset[str]:
    """Any one of these scopes opens the path."""
    if path in _ANY_SCOPE_PATHS:
        return frozenset({"infer", "admin"})
    if path == "/admin" or path.startswith("/admin/"):
        return frozenset({"admin"})
    return frozenset({"infer"})


class Auth:
    """Raises InvalidApiKey or Forbidden (insufficient_scope). Puts the key's place in the list into the scope's state."""

    def __init__(self, app: ASGIApp, keys: tuple[ApiKey, ...]) -> None:
        self._app = app
        self._keys = [(_digest(key.key.encode()), key) for key in keys]

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and self._keys and scope["path"] not in OPEN_PATHS:
            self._check(scope)
        return self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        number = self._find(_offered(scope))
        scope["state"]["key"] = number
        scope["state"]["client"] = f"key-{number + 1}"
        key = self._keys[number][1]
        needed = required_scopes(scope["path"])
        if not needed & key.scopes:
            message = f"this key may not do this: it needs the scope {' or '.join(sorted(needed))}"
            raise Forbidden(message, code="insufficient_scope")

    def _find(self, offered: list[bytes]) -> int:
        found = None
        for candidate in offered:
            # Digests are of one length, and every key is compared, so the time says nothing about any of them.
            digest = _digest(candidate)
            for number, (known, _key) in enumerate(self._keys):
                if hmac.compare_digest(digest, known):
                    found = number
        if found is None:
            said = "the API key is not valid" if offered else "an API key is needed"
            raise InvalidApiKey(f"{said}: send Authorization: Bearer KEY or x-api-key: KEY")
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _offered(scope: Scope) -> list[bytes]:
    keys = headers(scope, b"x-api-key")
    for value in headers(scope, b"authorization"):
        scheme, _, credentials = value.partition(" ")
        if scheme.lower() == "bearer" and credentials.strip():
            keys.append(credentials.strip())
    return [key.encode("latin-1") for key in keys if key]
