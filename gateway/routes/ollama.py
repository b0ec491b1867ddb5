"""Ollama's routes. Models are entries of the registry, so those that would make, fetch or remove one answer 501."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import metadata

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engines.errors import EngineError
from gateway.classify import TEXT, classify
from gateway.errors import ModelLoadFailed, ModelNotFound, NotSupported
from gateway.leased_response import LeasedResponse
from gateway.protocols import ollama_chat, ollama_generate, ollama_models
from gateway.protocols.ollama_answer import render_idle
from gateway.protocols.ollama_options import check_context, check_think
from gateway.protocols.ollama_request import OllamaRequest
from gateway.protocols.ollama_times import AnswerTimes
from gateway.registry.catalog import Catalog, ResolvedModel
from gateway.registry.model_card import read_card, thinking_of
from gateway.routes.bodies import new_head, parsed_json, sibling_numbers
from gateway.services import Services, services_of
from gateway.watched_response import WatchedResponse

__all__ = ["ROUTES", "registry_name"]

_VERSION = "0.12.11"
"""Ollama's release whose API this is: clients look for one that has what they need."""

_TAG = ":latest"


async def version(_request: Request) -> Response:
    """GET /api/version"""
    return JSONResponse({"version": _VERSION, "innkeeper": metadata.version("mlx-innkeeper")})


async def tags(request: Request) -> Response:
    """GET /api/tags: the models of the registry"""
    return _json(ollama_models.render_tags(services_of(request).catalog.models))


async def ps(request: Request) -> Response:
    """GET /api/ps: the models in memory"""
    services = services_of(request)
    on_gpu = services.catalog.registry.machine.device != "cpu"
    rows = services.residency.statistics().models
    return _json(ollama_models.render_ps(services.catalog.models, rows, on_gpu=on_gpu))


async def show(request: Request) -> Response:
    """POST /api/show: loads nothing"""
    services = services_of(request)
    wish = await parsed_json(request, ollama_models.parse_show, services.limits)
    model = services.catalog.resolve(registry_name(services.catalog, wish.model))
    try:
        card = await asyncio.to_thread(read_card, model, whole=wish.verbose)
    except EngineError as error:
        raise ModelLoadFailed(error.message) from error
    except OSError as error:
        raise ModelLoadFailed(f"model {model.id!r}: its file cannot be read: {error.strerror}") from error
    return _json(ollama_models.render_show(model, card))


async def chat(request: Request) -> LeasedResponse | WatchedResponse:
    """POST /api/chat"""
    return await _answer(request, await parsed_json(request, ollama_chat.parse, services_of(request).limits))


async def generate(request: Request) -> LeasedResponse | WatchedResponse:
    """POST /api/generate"""
    return await _answer(request, await parsed_json(request, ollama_generate.parse, services_of(request).limits))


async def _answer(request: Request, wish: OllamaRequest) -> LeasedResponse | WatchedResponse:
    services, times = services_of(request), AnswerTimes()
    model = classify(services, registry_name(services.catalog, wish.ask.model), TEXT)
    check_context(wish.context, model.id, model.footprint.context)
    if wish.idle:
        return _idle(request, services, model, wish, times)
    check_think(wish.ask.reasoning, thinks=thinking_of(model).thinks)
    head = new_head("ollama", model)

    def leased() -> None:
        times.leased()
        _keep_alive(services, model, wish)

    return LeasedResponse(
        services,
        model,
        wish.text_requests(model.request, sibling_numbers),
        stream=wish.stream_format(head, times),
        body=wish.body_format(head, times),
        ignored=wish.ask.ignored,
        leased=leased,
        seen=times.seen,
    )


def _idle(
    request: Request, services: Services, model: ResolvedModel, wish: OllamaRequest, times: AnswerTimes
) -> WatchedResponse:
    """Loads the model, or lets it go, and says so."""

    ignored = {"x-innkeeper-ignored": ", ".join(wish.ask.ignored)} if wish.ask.ignored else None

    async def work() -> Response:
        if wish.unloads:
            _keep_alive(services, model, wish)
            return _json(render_idle(model.id, wish.shape, "unload", times), ignored)
        client = getattr(request.state, "client", None) or (request.client.host if request.client else "unknown")
        priority = wish.ask.options.priority or model.request.priority
        async with services.residency.acquire(model, client=client, route=request.url.path, priority=priority):
            times.leased()
            _keep_alive(services, model, wish)
        return _json(render_idle(model.id, wish.shape, "load", times), ignored)

    return WatchedResponse(services.live, work)


def _keep_alive(services: Services, model: ResolvedModel, wish: OllamaRequest) -> None:
    if wish.keep_alive_s is not None:
        services.residency.keep_alive(model, wish.keep_alive_s)


async def of_registry(request: Request) -> Response:
    """What changes models: their entries are changed where they stand"""
    path = services_of(request).catalog.registry.path
    place = "the registry file" if path is None else f"the registry file, {path.name}"
    raise NotSupported(
        f"{request.method} {request.scope['route'].path} is not supported: models are entries of {place} on the server. "
        "Edit it there, look at it with `innkeeper config check`, and have it read again with `innkeeper reload`"
    )


def registry_name(catalog: Catalog, name: str) -> str:
    """The name without the tag that Ollama's clients add to those without one, unless it is in the registry with it."""
    if not name.endswith(_TAG):
        return name
    try:
        catalog.resolve(name)
    except ModelNotFound:
        return name.removesuffix(_TAG)
    return name


def _json(body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, media_type="application/json", headers=headers)


ROUTES = [
    Route("/api/version", version, methods=["GET"]),
    Route("/api/tags", tags, methods=["GET"]),
    Route("/api/ps", ps, methods=["GET"]),
    Route("/api/show", show, methods=["POST"]),
    Route("/api/chat", chat, methods=["POST"]),
    Route("/api/generate", generate, methods=["POST"]),
    Route("/api/pull", of_registry, methods=["POST"]),
    Route("/api/push", of_registry, methods=["POST"]),
    Route("/api/create", of_registry, methods=["POST"]),
    Route("/api/copy", of_registry, methods=["POST"]),
    Route("/api/delete", of_registry, methods=["DELETE"]),
    Route("/api/blobs/{digest}", of_registry, methods=["POST", "HEAD"]),
]
