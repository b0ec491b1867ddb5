"""Errors become answers here: a GatewayError in its protocol's envelope, anything unexpected as a 500 with a request id.

An unexpected error is logged once, with its trace. When the answer has begun, the connection is cut instead, since nothing
that could be sent would be understood. A request that the closing server gives up, since its body is still on the way, is
answered ``shutting_down``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.connection import connection_of
from gateway.errors import GatewayError, InternalError, InvalidRequest, MethodNotAllowed, NotFound, ShuttingDown
from gateway.logs import log_event, note
from gateway.protocols.envelopes import render
from gateway.services import Services

__all__ = ["ErrorBoundary", "send_error"]

logger = logging.getLogger("innkeeper.http")

_RETRY_AFTER_S = 10.0


class ErrorBoundary:
    """Catches everything from below."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        def send_watched(message: Message) -> Awaitable[None]:
            nonlocal started
            started = True
            return send(message)

        try:
            await self._app(scope, receive, send_watched)
        except ClientDisconnect:
            return  # it left while its body was read; there is nobody to answer
        except asyncio.CancelledError:
            if started or not _closing(scope):
                raise
            error = ShuttingDown("the server is shutting down", retry_after_s=_RETRY_AFTER_S)
            note(scope, code=error.code)
            await send_error(error, scope, send)
        except Exception as problem:
            answer = _as_gateway_error(problem, scope)
            if isinstance(answer, InternalError):
                request_id = scope["state"].get("request_id")
                logger.error("a request failed (id %s)", request_id, exc_info=problem)
            if not started:
                note(scope, code=answer.code)
                await send_error(answer, scope, send)
            elif (connection := connection_of(scope)) is not None:
                connection.abort()
            else:
                log_event(logger, logging.WARNING, "answer cut short", id=scope["state"].get("request_id"))


def _closing(scope: Scope) -> bool:
    """Whether the server ends: it alone cancels requests then."""
    services: Services = scope["app"].state.services
    return services.residency.is_shutting_down


def _as_gateway_error(error: Exception, scope: Scope) -> GatewayError:
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, HTTPException):
        return _from_router(error, scope)
    request_id = scope["state"].get("request_id")
    return InternalError(f"the gateway failed to serve this request; its log has the reason under {request_id}")


def _from_router(error: HTTPException, scope: Scope) -> GatewayError:
    """Starlette's router raises these for what it cannot route."""
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return NotFound(f"there is no route {scope['path'][:200]!r}{_other_route(scope)}", headers=headers)
    if error.status_code == 405:
        allowed = ", ".join(sorted(headers.pop("Allow", "").split(", ")))
        message = f"{scope['method']} is not allowed on {scope['path'][:200]}; allowed: {allowed}"
        return MethodNotAllowed(message, headers={**headers, "allow": allowed})
    if 400 <= error.status_code < 500:
        return InvalidRequest(error.detail)
    return InternalError(error.detail)


def _other_route(scope: Scope) -> str:
    """The route that may be meant: a base URL has the ``/v1`` or ``/api`` of its client's paths once more, or lacks it."""
    path: str = scope["path"][:200]
    bare = path.rstrip("/")
    within = bare.removeprefix("/api")
    for other in (bare, f"/v1{bare}", f"/api{bare}", bare.removeprefix("/v1"), within, f"/v1{within}"):
        known = (route.matches({**scope, "path": other})[0] is not Match.NONE for route in scope["app"].routes)
        if other not in ("", path) and any(known):
            return f"; did you mean {other!r}?"
    return "; GET /openapi.json has those there are"


async def send_error(error: GatewayError, scope: Scope, send: Send) -> None:
    """Sends the error as the whole answer."""
    rendered = render(error, scope["path"], scope["state"].get("request_id", ""))
    headers = [
        (b"content-type", rendered.media_type.encode()),
        (b"content-length", str(len(rendered.body)).encode()),
        *((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in rendered.headers.items()),
    ]
    await send({"type": "http.response.start", "status": rendered.status, "headers": headers})
    await send({"type": "http.response.body", "body": rendered.body})
