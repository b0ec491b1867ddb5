"""What operators and probes ask: is it up, is it ready, what did it count."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway.metrics import CONTENT_TYPE
from gateway.services import services_of

__all__ = ["ROUTES"]


async def root(_request: Request) -> Response:
    """GET /: the words by which Ollama's clients know a server"""
    return PlainTextResponse("Ollama is running")


async def health(request: Request) -> Response:
    """GET /health: the process is up and the manager ticked lately"""
    if services_of(request).residency.healthy(asyncio.get_running_loop().time()):
        return JSONResponse({"status": "ok"})
    reason = "the model manager has not ticked for two seconds"
    return JSONResponse({"status": "unhealthy", "reason": reason}, status_code=503)


async def ready(request: Request) -> Response:
    """GET /ready: a request sent now would be worked on; needs no model loaded"""
    residency = services_of(request).residency
    reason = "shutting down" if residency.is_shutting_down else residency.ready()
    if reason is None:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"status": "not ready", "reason": reason}, status_code=503, headers={"retry-after": "2"})


async def metrics_text(request: Request) -> Response:
    """GET /metrics: Prometheus' text format"""
    return Response(services_of(request).metrics.text(), media_type=CONTENT_TYPE)


async def metrics_json(request: Request) -> Response:
    """GET /v1/metrics: the same as JSON"""
    return JSONResponse(services_of(request).metrics.as_json())


ROUTES = [
    Route("/", root, methods=["GET"]),
    Route("/health", health, methods=["GET"]),
    Route("/ready", ready, methods=["GET"]),
    Route("/metrics", metrics_text, methods=["GET"]),
    Route("/v1/metrics", metrics_json, methods=["GET"]),
]
