"""The gateway as a value: an ASGI app made of lists."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from gateway.logs import log_event
from gateway.metrics import Metrics
from gateway.middleware.access_log import AccessLog
from gateway.middleware.auth import Auth
from gateway.middleware.body_limit import BodyLimit
from gateway.middleware.concurrency import Concurrency
from gateway.middleware.cors import Cors
from gateway.middleware.error_boundary import ErrorBoundary
from gateway.middleware.host_guard import HostGuard
from gateway.middleware.origin_guard import OriginGuard
from gateway.middleware.request_id import RequestId
from gateway.protocols.responses_object import interrupted
from gateway.registry.catalog import Catalog
from gateway.residency.event_feed import Notice
from gateway.residency_metrics import ResidencyMetrics
from gateway.responses import Database, ResponseStore
from gateway.routes import (
    admin,
    anthropic,
    embeddings,
    ollama,
    ollama_embed,
    openai,
    openapi,
    operations,
    rerank,
    responses,
    text_tools,
    unbuilt,
)
from gateway.services import Residency, Services
from gateway.settings import ServerSettings, Settings

__all__ = ["ROUTES", "create_app", "middleware"]

logger = logging.getLogger("innkeeper.http")

# Looked through in order: what is asked most comes first.
ROUTES: list[BaseRoute] = [
    *openai.ROUTES,
    *embeddings.ROUTES,
    *rerank.ROUTES,
    *responses.ROUTES,
    *anthropic.ROUTES,
    *ollama.ROUTES,
    *ollama_embed.ROUTES,
    *operations.ROUTES,
    *openapi.ROUTES,
    *text_tools.ROUTES,
    *admin.ROUTES,
    *unbuilt.ROUTES,
]


def middleware(server: ServerSettings, metrics: Metrics) -> list[Middleware]:
    """Outermost first; ``middleware/__init__`` says what each does."""
    return [
        Middleware(RequestId),
        Middleware(AccessLog, metrics),
        Middleware(Cors, server.cors_origins),
        Middleware(ErrorBoundary),
        Middleware(HostGuard, server.host, server.allowed_hosts),
        Middleware(OriginGuard, server.cors_origins),
        Middleware(Auth, server.api_keys),
        Middleware(Concurrency, server.api_keys),
        Middleware(BodyLimit, server.max_body_bytes, server.max_audio_body_bytes),
    ]


def create_app(settings: Settings, catalog: Catalog, residency: Residency, *, state: Path | None = None) -> Starlette:
    """The app. Whoever serves it starts and stops the residency, and opens and closes the store of responses.

    ``state`` is the directory of that store; None: it lasts as long as this.
    """
    metrics = Metrics()
    app = _App(routes=ROUTES, middleware=middleware(settings.server, metrics))
    app.router.redirect_slashes = False  # a redirect would leave the guards' view of the path

    def tell(problem: str) -> None:
        log_event(logger, logging.WARNING, "stored responses", problem=problem)
        residency.events.publish(Notice(time.time(), problem))

    store = ResponseStore(Database(state, settings.server.responses, interrupted=interrupted), tell)
    services = Services(settings=settings, catalog=catalog, residency=residency, metrics=metrics, responses=store)
    metrics.active.set_function(lambda: len(services.live))
    metrics.add(ResidencyMetrics(residency.statistics))
    app.state.services = services
    return app


class _App(Starlette):
    """Starlette without error handling of its own: the error boundary knows the path's envelope."""

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = self.router
        for middleware in reversed(self.user_middleware):
            app = middleware.cls(app, *middleware.args, **middleware.kwargs)
        return app
