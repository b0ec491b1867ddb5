"""The document of all routes, for clients that generate themselves and for tests that walk an API."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import metadata

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.middleware.auth import OPEN_PATHS
from gateway.protocols.openapi import Endpoint, document
from gateway.routes import unbuilt

__all__ = ["ROUTES", "endpoints"]


async def openapi(request: Request) -> Response:
    """GET /openapi.json"""
    return Response(_encoded(tuple(endpoints(request.app.routes))), media_type="application/json")


def endpoints(routes: Iterable[BaseRoute]) -> list[Endpoint]:
    """The routes as the document sees them."""
    found = []
    for route in routes:
        assert isinstance(route, Route), f"{route} has no path of its own"
        takes = {unbuilt.of_json: "application/json", unbuilt.of_form: "multipart/form-data"}.get(route.endpoint)
        methods = frozenset(route.methods or ())
        found.append(Endpoint(route.path, methods, open=route.path in OPEN_PATHS, takes=takes))
    return found


@lru_cache(maxsize=1)
def _encoded(endpoints: tuple[Endpoint, ...]) -> bytes:
    return msgspec.json.encode(document(endpoints, metadata.version("mlx-innkeeper")))


ROUTES = [Route("/openapi.json", openapi, methods=["GET"])]
