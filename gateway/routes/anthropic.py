"""Anthropic's routes: messages, and the count of a prompt's tokens.

Any ``anthropic-version``, or none, any ``anthropic-beta`` and ``?beta=true`` are taken: the body says what is asked for.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.classify import TEXT, classify
from gateway.leased_response import LeasedResponse
from gateway.protocols import anthropic_answer, anthropic_request
from gateway.protocols.chat_ask import ChatAsk
from gateway.registry.catalog import ResolvedModel
from gateway.registry.model_card import thinking_of
from gateway.routes.bodies import new_head, parsed_json, sibling_numbers
from gateway.services import services_of
from gateway.watched_response import WatchedResponse

__all__ = ["ROUTES"]


async def messages(request: Request) -> LeasedResponse:
    """POST /v1/messages"""
    services = services_of(request)
    wish = await parsed_json(request, anthropic_request.parse, services.limits)
    model = classify(services, wish.ask.model, TEXT)
    head = new_head("msg", model, "_")
    stream = wish.stream_format(head, request.state.request_id)
    return LeasedResponse(
        services,
        model,
        wish.text_requests(model.request, sibling_numbers),
        stream=stream,
        body=wish.body_format(head),
        ignored=_ignored(wish.ask, model),
        admitted=None if stream is None else stream.admitted,
    )


async def count_tokens(request: Request) -> WatchedResponse:
    """POST /v1/messages/count_tokens: by the tokenizer process; loads nothing"""
    services = services_of(request)
    wish = await parsed_json(request, anthropic_request.parse_count, services.limits)
    model = classify(services, wish.ask.model, TEXT)

    async def work() -> Response:
        answer = await services.residency.tokenizer.ask(model, wish.what(model.request))
        ignored = _ignored(wish.ask, model)
        headers = {"x-innkeeper-ignored": ", ".join(ignored)} if ignored else None
        body = anthropic_answer.render_count(len(answer.tokens))
        return Response(body, media_type="application/json", headers=headers)

    return WatchedResponse(services.live, work)


def _ignored(ask: ChatAsk, model: ResolvedModel) -> tuple[str, ...]:
    """What the answer's header names."""
    told = thinking_of(model)
    return anthropic_request.unheard(ask, thinks=told.thinks, takes_effort=told.takes_effort)


ROUTES = [
    Route("/v1/messages", messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
]
