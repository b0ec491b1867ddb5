"""One response, from a request whose items are known to what is stored of it: in the foreground and in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from engines.wire import ChatPrompt, EncodeChat, TextRequest
from gateway.errors import GatewayError, InvalidRequest, StoreUnavailable
from gateway.leased_response import Headers, LeasedResponse, Settle
from gateway.protocols.completion import AnswerHead, Completion
from gateway.protocols.responses_errors import in_own_terms
from gateway.protocols.responses_items import Item as ItemObject
from gateway.protocols.responses_object import Frame
from gateway.protocols.responses_request import ResponseRequest
from gateway.protocols.responses_stream import ResponseBody, ResponseStream
from gateway.protocols.truncation import shortened
from gateway.registry.catalog import ResolvedModel
from gateway.responses import Entry, Item, Run
from gateway.routes.bodies import sibling_numbers
from gateway.services import Services

__all__ = ["Turn", "begin_turn"]

_PREVIOUS_NOT_FOUND = "previous_response_not_found"


async def begin_turn(
    services: Services, owner: str, wish: ResponseRequest, model: ResolvedModel, head: AnswerHead
) -> Turn:
    """The request with what it refers to. GatewayError where that is not there, or does not go together."""
    store = services.responses
    earlier: tuple[Item, ...] = ()
    if wish.previous is not None:
        earlier = await _conversation(services, owner, wish.previous)
    found = await store.find(owner, wish.references)
    salt = head.id.partition("_")[2]
    own = wish.own_items({id: msgspec.json.decode(item.body) for id, item in found.items()}, salt)
    kept = tuple(found.get(item["id"]) or Item(item["id"], msgspec.json.encode(item)) for item in own)
    ask = wish.with_items([msgspec.json.decode(item.body) for item in earlier], own, services.limits)
    requests = ask.text_requests(model.request, sibling_numbers)
    return Turn(services, owner, wish, model, head, requests, (*earlier, *kept))


async def _conversation(services: Services, owner: str, id: str) -> tuple[Item, ...]:
    """What a stored response was made of, and what it says."""
    entry = await services.responses.read(owner, id)
    inputs = await services.responses.inputs(owner, id)
    if entry is None or inputs is None:
        message = f"previous_response_id: there is no stored response {id[:100]!r}"
        raise InvalidRequest(message, param="previous_response_id", code=_PREVIOUS_NOT_FOUND)
    if entry.status in ("queued", "in_progress"):
        message = (
            f"previous_response_id: response {id!r} is still {entry.status}; it can be gone on from once it is over"
        )
        raise InvalidRequest(message, param="previous_response_id")
    return (*inputs, *entry.outputs)


class Turn:
    """``inputs`` are all items that the response is made of, as they are stored."""

    def __init__(
        self,
        services: Services,
        owner: str,
        wish: ResponseRequest,
        model: ResolvedModel,
        head: AnswerHead,
        requests: Sequence[TextRequest],
        inputs: Sequence[Item],
    ) -> None:
        sampling = requests[0].sampling
        shown = {**wish.shown, "temperature": sampling.temperature, "top_p": sampling.top_p}
        frame = Frame(head, shown, wish.shape, time.time)
        self._services = services
        self._owner = owner
        self._wish = wish
        self._model = model
        self._head = head
        self._requests = requests
        self._inputs = inputs
        self._body = ResponseBody(frame)
        self._stream = ResponseStream(frame, queued=wish.background)

    @property
    def prompt(self) -> EncodeChat:
        """What the tokenizer is asked, to count what the model would read."""
        request = self._requests[0]
        assert isinstance(request.prompt, ChatPrompt)
        return EncodeChat(
            prompt=request.prompt, tools=request.tools, reasoning=request.reasoning, add_special=True, continues=True
        )

    def answer(self) -> ASGIApp:
        """Makes the response for the client that asked."""
        return self._leased(self._keep, streamed=self._wish.stream)

    async def in_background(self, limit: int | None, client: str) -> Run:
        """Makes it whether anybody waits or not. StoreUnavailable, or an error where too many are under way."""
        services, stream = self._services, self._stream
        services.runs.check_room(self._owner, limit)
        await services.responses.add(self._owner, self._entry(stream.response()), self._inputs)
        run = Run(
            self._head.id,
            self._owner,
            snapshot=lambda: msgspec.json.encode(stream.response()),
            failed=lambda error: self._fail(run, error),
        )
        run.add(stream.create())
        answer = self._leased(self._finish, streamed=True, leased=lambda: run.add(stream.begin()))
        services.runs.start(run, answer, "/v1/responses", client)
        return run

    def _leased(self, settle: Settle, *, streamed: bool, leased: Callable[[], None] | None = None) -> ASGIApp:
        response = LeasedResponse(
            self._services,
            self._model,
            self._requests,
            stream=self._stream if streamed else None,
            body=self._body,
            ignored=self._wish.ask.ignored,
            leased=leased,
            settle=settle,
            shorten=shortened if self._wish.truncate else None,
        )

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await response(scope, receive, send)
            except GatewayError as error:
                in_own_terms(error)
                raise

        return app

    async def _keep(self, completions: Sequence[Completion], error: GatewayError | None) -> Headers:
        """Stores what a client waits for. That it could not be is told, and the answer given all the same."""
        response = self._body.response(completions) if completions else self._concluded(error)
        if not self._wish.store:
            return ()
        try:
            await self._services.responses.add(self._owner, self._entry(response), self._inputs)
        except StoreUnavailable as unavailable:
            self._body.stored = self._stream.stored = False
            said = f"not stored: {unavailable.message}".replace("\n", " ")
            return [(b"x-innkeeper-store", said.encode("ascii", "replace"))]
        return ()

    async def _finish(self, _completions: Sequence[Completion], error: GatewayError | None) -> Headers:
        """Stores the end of what is made in the background. Where that fails this process knows it, and none after it."""
        await self._store_end(self._concluded(error))
        return ()

    async def _fail(self, run: Run, error: GatewayError) -> bytes:
        """The end of a run whose answer was cut, or did not come to begin: its last events."""
        stream = self._stream
        if stream.over:
            return b""
        cancelled = run.cancelled and not stream.concluded
        if not stream.concluded:
            await self._store_end(stream.conclude(cancelled=True) if cancelled else self._concluded(error))
        if cancelled:
            return stream.cancellation()
        return stream.failure(error) if stream.failed else stream.end()

    def _concluded(self, error: GatewayError | None) -> dict[str, Any]:
        return self._stream.conclude(None if error is None else in_own_terms(error))

    async def _store_end(self, response: dict[str, Any]) -> None:
        try:
            await self._services.responses.finish(self._owner, self._entry(response))
        except StoreUnavailable:
            self._stream.stored = False  # told by the store

    def _entry(self, response: dict[str, Any]) -> Entry:
        output: list[ItemObject] = response["output"]
        return Entry(
            id=self._head.id,
            created=float(self._head.created),
            status=response["status"],
            body=msgspec.json.encode({**response, "output": []}),
            outputs=tuple(Item(item["id"], msgspec.json.encode(item)) for item in output),
        )
