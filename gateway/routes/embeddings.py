"""OpenAI's embeddings."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.routing import Route

from engines.wire import Vectors
from gateway.classify import classify
from gateway.protocols import embeddings as protocol
from gateway.routes.bodies import parsed_json
from gateway.services import services_of
from gateway.texts_response import TextsAnswer
from gateway.watched_response import WatchedResponse

__all__ = ["ROUTES"]


async def embeddings(request: Request) -> WatchedResponse:
    """POST /v1/embeddings"""
    services = services_of(request)
    wish = await parsed_json(request, protocol.parse, services.limits)
    model = classify(services, wish.model, ("embedding",))
    return TextsAnswer(
        services,
        model,
        wish.ask,
        Vectors,
        partial(protocol.render, model.id, wish.encoding),
        priority=wish.priority,
        ignored=wish.ignored,
    ).response(request)


ROUTES = [Route("/v1/embeddings", embeddings, methods=["POST"])]
