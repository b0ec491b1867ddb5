"""An answer that holds a lease while its worker makes it.

One request runs as two tasks beside each other:

- *produce* takes the lease and puts the worker's events into the outbox. The lease ends when the terminal event is in the
  outbox, not when a slow client has read it.
- *transmit*, the request's own task, sends what waits there. Headers go out at the first piece, or after ``keepalive_s``
  without one; until then an error has its real status. From then on a keep-alive follows each ``keepalive_s`` of silence, and
  an error is one event and the format's end marker. An unstreamed answer sends nothing until it is whole.

A client that leaves ends both, and ending *produce* cancels the request in the worker. A client that lets
:data:`MAX_WAITING_BYTES` pile up is cut here; one that takes no byte for ``client_stall_s`` is cut by its connection
(``connection.py``), which this response sees as a departure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Literal

import msgspec
from starlette.types import Receive, Scope, Send

from engines.wire import Admitted, Event, Finished, TextDelta, TextRequest
from gateway.connection import connection_of
from gateway.departure import Departure
from gateway.ending import ending_of, without_end
from gateway.errors import ContextExceeded, GatewayError, InternalError
from gateway.logs import note
from gateway.outbox import Outbox
from gateway.protocols.completion import BodyFormat, Completion, StreamFormat, completions_of
from gateway.protocols.piece import AnswerEvent, EndPiece, piece_of
from gateway.registry.catalog import ResolvedModel
from gateway.services import Lease, Services

__all__ = ["MAX_CHOICES_AT_ONCE", "MAX_WAITING_BYTES", "Headers", "LeasedResponse", "Settle", "Shorten"]

MAX_WAITING_BYTES = 4 * 1024**2
# Of one request: a long list of prompts must not take the model from everybody else. Choices of one prompt are never parted.
MAX_CHOICES_AT_ONCE = 8

Outcome = Literal["ok", "error", "cancelled"]
Headers = Sequence[tuple[bytes, bytes]]
Settle = Callable[[Sequence[Completion], GatewayError | None], Awaitable[Headers]]
Shorten = Callable[[TextRequest, ContextExceeded], TextRequest | None]

logger = logging.getLogger("innkeeper.http")


class LeasedResponse:
    """An ASGI app that answers one request.

    ``requests`` has one request a choice, all served under one lease. ``stream`` None asks for an unstreamed answer, which
    ``body`` renders. An error that has to become a status is raised from the call. ``admitted`` is told how many tokens a
    prompt has, before anything of its answer is rendered. ``leased`` is called when the model is there, ``seen`` with each event
    as it comes, which a slow client's rendering may be long behind.

    ``settle`` is awaited when an answer is over and before its end is rendered, so that what it does has happened for whoever
    has read the end. It is given the completions of an unstreamed answer (a stream has rendered them), or the error of one
    whose headers are out, and returns headers that an unstreamed answer adds. ``shorten`` makes of a request that does not fit
    the context one that may, or None.
    """

    def __init__(
        self,
        services: Services,
        model: ResolvedModel,
        requests: Sequence[TextRequest],
        *,
        stream: StreamFormat | None,
        body: BodyFormat,
        ignored: Sequence[str] = (),
        admitted: Callable[[int], None] | None = None,
        leased: Callable[[], None] | None = None,
        seen: Callable[[Event], None] | None = None,
        settle: Settle | None = None,
        shorten: Shorten | None = None,
    ) -> None:
        self._services = services
        self._model = model
        self._requests = requests if stream is not None else [_whole(request) for request in requests]
        self._stream = stream
        self._body = body
        self._admitted = admitted
        self._settle = settle
        self._shorten = shorten
        self._leased = leased
        self._seen = seen
        self._headers = [(b"x-innkeeper-ignored", ", ".join(ignored).encode())] if ignored else []
        self._outbox = Outbox() if stream is not None else Outbox(separate=0)
        self._producing: asyncio.Task[None] | None = None
        self._departure: Departure | None = None
        self._left = False
        self._began_s = time.perf_counter()
        self._begun = False  # a prompt of it is being read, or was
        self._first_text_s: float | None = None
        self._tokens = 0  # seen in events: what a cancelled request is counted with
        self._finishes: dict[int, Finished] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._connection = connection_of(scope)
        client = scope.get("client")
        client_name = scope["state"].get("client") or (client[0] if client else "unknown")
        outcome: Outcome = "cancelled"
        transmitting = asyncio.current_task()
        assert transmitting is not None
        self._transmitting = transmitting
        self._producing = asyncio.create_task(self._produce(client_name, scope["path"]))
        self._departure = Departure(scope, receive, self._leave)
        self._services.live.add(self)
        try:
            error = await self._transmit(send)
            outcome = "ok" if self._outbox.error is None else "error"
        except asyncio.CancelledError:
            if not self._left or transmitting.uncancel() > 0:
                raise
            error = None  # there is nobody to be told
        except Exception:
            outcome = "error"
            raise
        finally:
            self._departure.unwatch()
            try:
                if not self._producing.done():
                    self._producing.cancel()
                    await asyncio.wait([self._producing])
            finally:
                self._services.live.discard(self)
                self._account(scope, outcome)
        if error is not None:
            raise error

    def end_with(self, error: GatewayError) -> None:
        """Ends the answer with this error now, as the worker had failed; its request is cancelled. Idempotent."""
        self._outbox.fail(error)
        if self._producing is not None:
            self._producing.cancel()

    def _leave(self) -> None:
        self._left = True
        self._transmitting.cancel()

    # --- produce ----------------------------------------------------------------------------------------------------

    async def _produce(self, client: str, route: str) -> None:
        try:
            priority = self._requests[0].priority  # one for all choices
            acquiring = self._services.residency.acquire(self._model, client=client, route=route, priority=priority)
            async with acquiring as lease:
                if self._leased is not None:
                    self._leased()
                await self._serve(lease)
            self._outbox.close()
        except GatewayError as error:
            self._outbox.fail(error)
        except Exception:
            logger.exception("an answer of model %s broke", self._model.id)
            self._outbox.fail(InternalError("the gateway failed to serve this request; its log says why"))

    async def _serve(self, lease: Lease) -> None:
        """Every choice, the prompts several at a time; the first error ends all."""
        if len(self._requests) == 1:
            await self._serve_choice(lease, 0, self._requests[0])
            return
        prompts = _by_prompt(self._requests)
        places = asyncio.Semaphore(max(1, MAX_CHOICES_AT_ONCE // len(prompts[0])))

        async def serve_in_turn(choices: Sequence[int]) -> None:
            async with places, asyncio.TaskGroup() as group:
                # Their tasks begin one after the other, and so does what is submitted.
                for index in choices:
                    group.create_task(self._serve_choice(lease, index, self._requests[index]))

        try:
            async with asyncio.TaskGroup() as group:
                for choices in prompts:
                    group.create_task(serve_in_turn(choices))
        except ExceptionGroup as errors:
            raise _first(errors) from errors

    async def _serve_choice(self, lease: Lease, index: int, request: TextRequest) -> None:
        while index not in self._finishes:
            events = lease.stream(request)
            try:
                self._finishes[index] = await self._read(index, events)
            except ContextExceeded as error:
                shorter = None if self._shorten is None else self._shorten(request, error)
                if shorter is None:
                    raise
                request = shorter
            finally:
                # So that a cancelled request is cancelled now, and not when the iterator is collected.
                await events.aclose()
        self._outbox.put(EndPiece(index, self._finishes[index]))

    async def _read(self, index: int, events: AsyncIterator[Event]) -> Finished:
        async for event in events:
            if self._seen is not None:
                self._seen(event)
            if (finish := ending_of(event)) is not None:
                return finish
            if isinstance(event, Admitted):
                self._admit(event)
            elif isinstance(event, AnswerEvent):
                self._put(index, event)
            else:
                raise InternalError(f"the model's worker answered a prompt with {type(event).__name__}")
        raise without_end()

    def _admit(self, event: Admitted) -> None:
        if not self._begun:
            self._begun = True
            self._services.metrics.admitted(self._model.id, time.perf_counter() - self._began_s)
        if self._admitted is not None:
            self._admitted(event.prompt_tokens)

    def _put(self, index: int, event: AnswerEvent) -> None:
        # An echoed prompt is text, but of no token of the answer.
        if self._first_text_s is None and (not isinstance(event, TextDelta) or (event.text and event.tokens)):
            self._first_text_s = time.perf_counter() - self._began_s
        self._tokens += len(event.tokens)
        self._outbox.put(piece_of(index, event))
        if self._stream is not None and self._outbox.waiting_bytes > MAX_WAITING_BYTES:
            self._cut()

    def _cut(self) -> None:
        """Gives a client up that does not read."""
        if self._connection is not None:
            self._connection.abort()
        if self._departure is not None:
            self._departure.leave()

    # --- transmit ---------------------------------------------------------------------------------------------------

    async def _transmit(self, send: Send) -> GatewayError | None:
        """Sends the answer; returns an error that came before anything was sent."""
        if self._stream is None:
            return await self._transmit_body(send)
        return await self._transmit_stream(send, self._stream)

    async def _transmit_stream(self, send: Send, stream: StreamFormat) -> GatewayError | None:
        """Sends the stream; returns an error that came before the headers went out."""
        outbox = self._outbox
        keepalive_s = self._services.settings.server.keepalive_s
        await outbox.wait(keepalive_s)
        if outbox.error is not None:
            return outbox.error
        headers = [
            (b"content-type", stream.media_type.encode()),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            *self._headers,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            ended = outbox.ended
            chunk = stream.render(outbox.take())
            if ended and self._settle is not None:
                await self._settle((), outbox.error)
            if outbox.error is not None:
                chunk += stream.failure(outbox.error)
            elif ended:
                chunk += stream.end()
            await send({"type": "http.response.body", "body": chunk or stream.keepalive, "more_body": not ended})
            if ended:
                return None
            await outbox.wait(keepalive_s)

    async def _transmit_body(self, send: Send) -> GatewayError | None:
        """Sends the whole answer; returns the error if there is none."""
        await self._outbox.wait_ended()
        if self._outbox.error is not None:
            return self._outbox.error
        completions = completions_of(self._outbox.take())
        settled = [] if self._settle is None else await self._settle(completions, None)
        body = self._body(completions)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *self._headers,
            *settled,
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return None

    # --- accounts ---------------------------------------------------------------------------------------------------

    def _account(self, scope: Scope, outcome: Outcome) -> None:
        finishes = self._finishes.values()
        read = {self._requests[index].siblings or -index: finish for index, finish in self._finishes.items()}
        prompt_tokens = sum(finish.usage.prompt_tokens for finish in read.values())  # a prompt is read once
        whole = len(finishes) == len(self._requests)
        completion_tokens = sum(finish.usage.completion_tokens for finish in finishes) if whole else self._tokens
        self._services.metrics.answered(
            self._model.id,
            outcome,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            first_text_s=self._first_text_s,
        )
        note(scope, model=self._model.id, outcome=outcome, tokens=completion_tokens)
        if self._outbox.error is not None:
            note(scope, code=self._outbox.error.code)


def _whole(request: TextRequest) -> TextRequest:
    """Its worker need not send text as it comes."""
    return msgspec.structs.replace(request, whole=True)


def _by_prompt(requests: Sequence[TextRequest]) -> list[list[int]]:
    """The requests' indices, those of one prompt together."""
    prompts: list[list[int]] = []
    for index, request in enumerate(requests):
        if request.siblings is not None and index > 0 and request.siblings == requests[index - 1].siblings:
            prompts[-1].append(index)
        else:
            prompts.append([index])
    return prompts


def _first(errors: BaseException) -> BaseException:
    """The first error in a tree of groups."""
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors
