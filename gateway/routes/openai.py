"""OpenAI's text routes: chat, completions, models."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.classify import TEXT, classify
from gateway.leased_response import LeasedResponse
from gateway.protocols import openai_chat, openai_completions
from gateway.protocols.model_page import parse_model_page
from gateway.registry.catalog import ResolvedModel
from gateway.routes.bodies import new_head, parsed_json, sibling_numbers
from gateway.services import Services, services_of

__all__ = ["ROUTES"]


async def chat_completions(request: Request) -> LeasedResponse:
    """POST /v1/chat/completions"""
    services = services_of(request)
    chat = await parsed_json(request, openai_chat.parse, services.limits)
    model = classify(services, chat.ask.model, TEXT)
    head = new_head("chatcmpl", model)
    return LeasedResponse(
        services,
        model,
        chat.ask.text_requests(model.request, sibling_numbers),
        stream=chat.stream_format(head),
        body=chat.body_format(head),
        ignored=chat.ask.ignored,
    )


async def completions(request: Request) -> LeasedResponse:
    """POST /v1/completions"""
    services = services_of(request)
    completion = await parsed_json(request, openai_completions.parse, services.limits)
    model = classify(services, completion.model, TEXT)
    head = new_head("cmpl", model)
    return LeasedResponse(
        services,
        model,
        completion.text_requests(model.request, sibling_numbers),
        stream=completion.stream_format(head),
        body=completion.body_format(head),
        ignored=completion.ignored,
    )


async def models(request: Request) -> Response:
    """GET /v1/models"""
    services = services_of(request)
    page = parse_model_page(request.query_params.multi_items())
    states = _states(services)
    found = services.catalog.models
    shown, more = page.of(found, [model.id for model in found])
    listed = [_model(model, states) for model in shown]
    ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]} if listed else {"first_id": None, "last_id": None}
    headers = {"x-innkeeper-ignored": ", ".join(page.ignored)} if page.ignored else None
    return JSONResponse({"object": "list", "data": listed, "has_more": more, **ends}, headers=headers)


async def model(request: Request) -> Response:
    """GET /v1/models/{id}: by id, alias or id@profile"""
    services = services_of(request)
    return JSONResponse(_model(services.catalog.resolve(request.path_params["id"]), _states(services)))


def _states(services: Services) -> dict[str, str]:
    """The state of each model the residency knows."""
    return {model.id: model.state for model in services.residency.statistics().models}


def _model(model: ResolvedModel, states: Mapping[str, str]) -> dict[str, Any]:
    """OpenAI's fields, Anthropic's, whose clients ask the same path, and what this gateway knows beside them."""
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "innkeeper",
        "type": "model",
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z"),
        "aliases": list(model.aliases),
        "task": model.task,
        "profile": model.profile,
        "profiles": list(model.profiles),
        "state": states.get(model.id),
        "context": model.footprint.context or None,
        "footprint_bytes": model.footprint.static_bytes or None,
        "error": None if model.error is None else {"code": model.error.code, "message": model.error.message},
    }


ROUTES = [
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/models", models, methods=["GET"]),
    Route("/v1/models/{id:path}", model, methods=["GET"]),
]
