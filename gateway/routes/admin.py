"""The operator's view of the residency."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.protocols.admin import status_object
from gateway.services import services_of

__all__ = ["ROUTES"]


async def status(request: Request) -> Response:
    """GET /admin/status"""
    return JSONResponse(status_object(services_of(request).residency.statistics()))


ROUTES = [Route("/admin/status", status, methods=["GET"])]
