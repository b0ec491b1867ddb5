"""Reranking, under the paths that Cohere's, Jina's and vLLM's clients ask, and scores of pairs of texts."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.routing import Route

from engines.wire import Scores
from gateway.classify import classify
from gateway.protocols import rerank as rerank_protocol
from gateway.protocols import score as score_protocol
from gateway.routes.bodies import new_head, parsed_json
from gateway.services import services_of
from gateway.texts_response import TextsAnswer
from gateway.watched_response import WatchedResponse

__all__ = ["ROUTES"]


async def rerank(request: Request) -> WatchedResponse:
    """POST /v1/rerank, /v2/rerank, /rerank"""
    services = services_of(request)
    wish = await parsed_json(request, rerank_protocol.parse, services.limits)
    model = classify(services, wish.model, ("rerank",))
    return TextsAnswer(
        services,
        model,
        wish.ask,
        Scores,
        partial(rerank_protocol.render, new_head("rerank", model).id, model.id, wish),
        priority=wish.priority,
        ignored=wish.ignored,
    ).response(request)


async def score(request: Request) -> WatchedResponse:
    """POST /v1/score"""
    services = services_of(request)
    wish = await parsed_json(request, score_protocol.parse, services.limits)
    model = classify(services, wish.model, ("rerank",))
    return TextsAnswer(
        services,
        model,
        wish.ask,
        Scores,
        partial(score_protocol.render, new_head("score", model), wish),
        priority=wish.priority,
        ignored=wish.ignored,
        names=wish.names,
    ).response(request)


ROUTES = [
    Route("/v1/rerank", rerank, methods=["POST"]),
    Route("/v2/rerank", rerank, methods=["POST"]),
    Route("/rerank", rerank, methods=["POST"]),
    Route("/v1/score", score, methods=["POST"]),
]
