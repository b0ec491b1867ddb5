"""The gateway as a value: an ASGI app made of lists."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

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
from gateway.registry.catalog import Catalog
from gateway.residency_metrics import ResidencyMetrics
from gateway.routes import admin, anthropic, ollama, openai, openapi, operations, text_tools, unbuilt
from gateway.services import Residency, Services
from gateway.settings import ServerSettings, Settings

__all__ = ["ROUTES", "create_app", "middleware"]

# Looked through in order: what is asked most comes first.
ROUTES: list[BaseRoute] = [
    *openai.ROUTES,
    *anthropic.ROUTES,
    *ollama.ROUTES,
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


def create_app(settings: Settings, catalog: Catalog, residency: Residency) -> Starlette:
    """The app. Whoever serves it starts and stops the residency."""
    metrics = Metrics()
    app = _App(routes=ROUTES, middleware=middleware(settings.server, metrics))
    app.router.redirect_slashes = False  # a redirect would leave the guards' view of the path
    services = Services(settings=settings, catalog=catalog, residency=residency, metrics=metrics)
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
