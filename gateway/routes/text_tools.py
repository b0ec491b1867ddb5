"""Text to token ids and back, by the tokenizer process: no model is loaded for it, none is evicted."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.classify import TEXT, classify
from gateway.errors import InvalidRequest
from gateway.protocols import text_tools
from gateway.registry.catalog import ResolvedModel
from gateway.routes.bodies import parsed_json
from gateway.services import Services, services_of
from gateway.watched_response import WatchedResponse

__all__ = ["ROUTES"]


async def tokenize(request: Request) -> WatchedResponse:
    """POST /tokenize"""
    services = services_of(request)
    wish = await parsed_json(request, text_tools.parse_tokenize, services.limits)
    model = _model(services, wish.model)

    async def work() -> Response:
        answer = await services.residency.tokenizer.ask(
            model, wish.what(model.request), texts=wish.strings, pieces=bool(wish.pieces)
        )
        return _json(text_tools.render_tokenized(wish, answer, model.footprint.context or None))

    return WatchedResponse(services.live, work)


async def detokenize(request: Request) -> WatchedResponse:
    """POST /detokenize"""
    services = services_of(request)
    wish = await parsed_json(request, text_tools.parse_detokenize, services.limits)
    model = _model(services, wish.model)

    async def work() -> Response:
        return _json(text_tools.render_detokenized(await services.residency.tokenizer.ask(model, wish.what)))

    return WatchedResponse(services.live, work)


def _model(services: Services, name: str | None) -> ResolvedModel:
    """The model of this name; without one the only text model there is."""
    if name is None:
        ids = [id for task in TEXT for id in services.catalog.ids(task)]
        if len(ids) != 1:
            offer = f"the registry has: {', '.join(ids)}" if ids else "the registry has no text model"
            raise InvalidRequest(f"model is missing; {offer}", param="model")
        name = ids[0]
    return classify(services, name, TEXT)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


ROUTES = [
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
]
