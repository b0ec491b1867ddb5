"""Ollama's embeddings, by the newer route and the older one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engines.wire import Usage, Vectors
from gateway.classify import classify
from gateway.protocols import ollama_embed as protocol
from gateway.protocols.ollama_embed import OllamaEmbedRequest
from gateway.protocols.ollama_options import check_context
from gateway.protocols.ollama_times import AnswerTimes
from gateway.registry.catalog import ResolvedModel
from gateway.routes.bodies import parsed_json
from gateway.routes.ollama import registry_name
from gateway.services import Services, services_of
from gateway.texts_response import TextsAnswer
from gateway.watched_response import WatchedResponse

__all__ = ["ROUTES"]

Render = Callable[[Sequence[Vectors], Usage], bytes]


async def embed(request: Request) -> WatchedResponse:
    """POST /api/embed"""
    services, times = services_of(request), AnswerTimes()
    wish = await parsed_json(request, protocol.parse_embed, services.limits)
    model = _model(services, wish)
    return _answer(request, services, model, wish, times, partial(protocol.render_embed, model.id, times))


async def embeddings(request: Request) -> WatchedResponse:
    """POST /api/embeddings"""
    services, times = services_of(request), AnswerTimes()
    wish = await parsed_json(request, protocol.parse_embeddings, services.limits)
    return _answer(request, services, _model(services, wish), wish, times, protocol.render_embeddings)


def _model(services: Services, wish: OllamaEmbedRequest) -> ResolvedModel:
    model = classify(services, registry_name(services.catalog, wish.model), ("embedding",))
    check_context(wish.context, model.id, model.footprint.context)
    return model


def _answer(
    request: Request,
    services: Services,
    model: ResolvedModel,
    wish: OllamaEmbedRequest,
    times: AnswerTimes,
    render: Render,
) -> WatchedResponse:
    def keep_alive() -> None:
        if wish.keep_alive_s is not None:
            services.residency.keep_alive(model, wish.keep_alive_s)

    def leased() -> None:
        times.leased()
        keep_alive()

    async def idle() -> Response:
        """Loads the model, or lets it go."""
        if wish.unloads:
            keep_alive()
        else:
            client = getattr(request.state, "client", None) or (request.client.host if request.client else "unknown")
            priority = wish.priority or model.request.priority
            async with services.residency.acquire(model, client=client, route=request.url.path, priority=priority):
                leased()
        ignored = {"x-innkeeper-ignored": ", ".join(wish.ignored)} if wish.ignored else None
        return Response(render((), Usage()), media_type="application/json", headers=ignored)

    if wish.ask is None:
        return WatchedResponse(services.live, idle)
    return TextsAnswer(
        services,
        model,
        wish.ask,
        Vectors,
        render,
        priority=wish.priority,
        ignored=wish.ignored,
        leased=leased,
        seen=times.seen,
    ).response(request)


ROUTES = [
    Route("/api/embed", embed, methods=["POST"]),
    Route("/api/embeddings", embeddings, methods=["POST"]),
]
