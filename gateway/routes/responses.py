"""OpenAI's Responses: make them, and read, cancel and delete those that are stored. A key sees its own only."""

from __future__ import annotations

import hashlib

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.classify import TEXT, classify
from gateway.errors import GatewayError, InvalidRequest, NotFound
from gateway.protocols import responses_query, responses_request
from gateway.protocols.responses_errors import in_own_terms
from gateway.protocols.responses_request import ResponseRequest
from gateway.responses import Entry
from gateway.routes.bodies import new_head, parsed_json
from gateway.routes.response_turn import begin_turn
from gateway.routes.run_view import RunView
from gateway.services import Services, services_of
from gateway.settings import ApiKey
from gateway.watched_response import WatchedResponse

__all__ = ["ROUTES"]


async def create(request: Request) -> ASGIApp:
    """POST /v1/responses"""
    services = services_of(request)
    wish = await parsed_json(request, responses_request.parse, services.limits)
    model = classify(services, wish.ask.model, TEXT)
    key = _key(request)
    turn = await begin_turn(services, _owner(key), wish, model, new_head("resp", model, "_"))
    if not wish.background:
        return turn.answer()
    run = await turn.in_background(None if key is None else key.concurrency, _client(request))
    if wish.stream:
        return RunView(run, 0, services.settings.server.keepalive_s)
    return _json(run.snapshot(), _ignored(wish))


async def input_tokens(request: Request) -> ASGIApp:
    """POST /v1/responses/input_tokens: by the tokenizer process; loads and stores nothing"""
    services = services_of(request)
    wish = await parsed_json(request, responses_request.parse, services.limits)
    model = classify(services, wish.ask.model, TEXT)
    turn = await begin_turn(services, _owner(_key(request)), wish, model, new_head("resp", model, "_"))

    async def work() -> Response:
        try:
            answer = await services.residency.tokenizer.ask(model, turn.prompt)
        except GatewayError as error:
            raise in_own_terms(error) from error
        return JSONResponse(responses_query.count_object(len(answer.tokens)), headers=_ignored(wish))

    return WatchedResponse(services.live, work)


async def stored(request: Request) -> ASGIApp:
    """GET and DELETE /v1/responses/{id}"""
    return await (delete(request) if request.method == "DELETE" else read(request))


async def read(request: Request) -> ASGIApp:
    """GET /v1/responses/{id}, also as the events of one that is made in the background"""
    services, owner, id = services_of(request), _owner(_key(request)), request.path_params["id"]
    wish = responses_query.parse_read(request.query_params.multi_items())
    run = services.runs.find(owner, id)
    if run is None:
        entry = await _stored(services, owner, id)
        if wish.stream:
            message = f"stream: the events of response {id!r} are not kept (any more); read it without stream"
            raise InvalidRequest(message, param="stream")
        return _whole(entry)
    return RunView(run, wish.after + 1, services.settings.server.keepalive_s) if wish.stream else _json(run.snapshot())


async def delete(request: Request) -> Response:
    """DELETE /v1/responses/{id}: one that is being made is cancelled first"""
    services, owner, id = services_of(request), _owner(_key(request)), request.path_params["id"]
    run = services.runs.find(owner, id)
    if run is not None:
        run.cancel()
        await run.over()
        services.runs.forget(id)
    if not await services.responses.delete(owner, id) and run is None:
        raise _missing(id)
    return JSONResponse(responses_query.deleted_object(id))


async def cancel(request: Request) -> Response:
    """POST /v1/responses/{id}/cancel: of one made in the background; one that is over stays as it is"""
    services, owner, id = services_of(request), _owner(_key(request)), request.path_params["id"]
    run = services.runs.find(owner, id)
    if run is not None:
        run.cancel()
        await run.over()
        return _json(run.snapshot())
    entry = await _stored(services, owner, id)
    response = responses_query.assembled(entry.body, [item.body for item in entry.outputs])
    if not response["background"]:
        raise InvalidRequest(f"response {id!r} was not made in the background; only such can be cancelled", param="id")
    return JSONResponse(response)


async def input_items(request: Request) -> Response:
    """GET /v1/responses/{id}/input_items"""
    services, owner, id = services_of(request), _owner(_key(request)), request.path_params["id"]
    wish = responses_query.parse_page(request.query_params.multi_items())
    page = await services.responses.page(owner, id, limit=wish.limit, after=wish.after, descending=wish.descending)
    if page is None:
        await _stored(services, owner, id)
        raise InvalidRequest(f"after is {wish.after!r}; it must be the id of an input item of {id!r}", param="after")
    return _json(responses_query.page_object([item.body for item in page.items], more=page.more))


async def _stored(services: Services, owner: str, id: str) -> Entry:
    entry = await services.responses.read(owner, id)
    if entry is None:
        raise _missing(id)
    return entry


def _missing(id: str) -> NotFound:
    return NotFound(f"there is no stored response {id[:100]!r}", param="id")


def _whole(entry: Entry) -> Response:
    return JSONResponse(responses_query.assembled(entry.body, [item.body for item in entry.outputs]))


def _json(body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(body, media_type="application/json", headers=headers)


def _ignored(wish: ResponseRequest) -> dict[str, str] | None:
    return {"x-innkeeper-ignored": ", ".join(wish.ask.ignored)} if wish.ask.ignored else None


def _key(request: Request) -> ApiKey | None:
    """The key that the request came with; None where none are configured."""
    number = request.scope["state"].get("key")
    return None if number is None else services_of(request).settings.server.api_keys[number]


def _owner(key: ApiKey | None) -> str:
    """Whose responses the key's are. By its digest: keys may change places in the registry, and are not written down."""
    return "" if key is None else hashlib.sha256(b"innkeeper responses\0" + key.key.encode()).hexdigest()[:32]


def _client(request: Request) -> str:
    named: str | None = request.scope["state"].get("client")
    return named or (request.client.host if request.client else "unknown")


ROUTES = [
    Route("/v1/responses", create, methods=["POST"]),
    Route("/v1/responses/input_tokens", input_tokens, methods=["POST"]),
    Route("/v1/responses/{id}", stored, methods=["GET", "DELETE"]),
    Route("/v1/responses/{id}/cancel", cancel, methods=["POST"]),
    Route("/v1/responses/{id}/input_items", input_items, methods=["GET"]),
]
