"""A key's ``concurrency``: how many of its requests may be under way at a time."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import RateLimited
from gateway.middleware.auth import required_scopes
from gateway.settings import ApiKey

__all__ = ["Concurrency"]

_RETRY_AFTER_S = 1.0


class Concurrency:
    """Raises RateLimited. Counts requests that need the infer scope, streams to their end. Reads the key ``auth`` found."""

    def __init__(self, app: ASGIApp, keys: tuple[ApiKey, ...]) -> None:
        self._app = app
        self._limits = [key.concurrency for key in keys]
        self._active = [0] * len(keys)  # written here alone

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        number = scope["state"].get("key") if scope["type"] == "http" else None
        limit = None if number is None else self._limits[number]
        if number is None or limit is None or "admin" in required_scopes(scope["path"]):
            return self._app(scope, receive, send)
        if self._active[number] >= limit:
            message = f"this key has {limit} requests under way, which is its limit; wait for one to end"
            raise RateLimited(message, retry_after_s=_RETRY_AFTER_S)
        return self._counted(number, scope, receive, send)

    async def _counted(self, number: int, scope: Scope, receive: Receive, send: Send) -> None:
        self._active[number] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._active[number] -= 1
