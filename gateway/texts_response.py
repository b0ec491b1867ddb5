"""An answer to many texts: vectors or scores, gathered under a lease and rendered when all are there.

The lease ends with the worker's terminal event, before anything is rendered or sent. A client that leaves earlier ends the work,
its request is cancelled in the worker, and the lease comes back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engines.wire import Admitted, EmbedRequest, Event, Priority, ScoreRequest, Scores, Usage, Vectors
from gateway.ending import ending_of, without_end
from gateway.errors import GatewayError, InternalError
from gateway.logs import note
from gateway.registry.catalog import ResolvedModel
from gateway.services import Services
from gateway.watched_response import WatchedResponse

__all__ = ["TextsAnswer"]

Part = TypeVar("Part", bound=Vectors | Scores)

_INLINE_BYTES = 64 * 1024  # of vectors: rendered within some two milliseconds


class TextsAnswer(Generic[Part]):
    """What one request is asked of which model, and how its answer is made.

    ``render`` makes the body of the parts, which are whole and in order, and of the usage; for large ones in a thread.
    ``leased`` is called when the model is there, ``seen`` with each event. ``names`` are the names of the request's fields, where
    they are not those that the worker knows.
    """

    def __init__(
        self,
        services: Services,
        model: ResolvedModel,
        ask: EmbedRequest | ScoreRequest,
        kind: type[Part],
        render: Callable[[Sequence[Part], Usage], bytes],
        *,
        priority: Priority | None = None,
        ignored: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
        leased: Callable[[], None] | None = None,
        seen: Callable[[Event], None] | None = None,
    ) -> None:
        self._services = services
        self._model = model
        self._ask = msgspec.structs.replace(ask, priority=priority or model.request.priority)
        self._kind = kind
        self._render = render
        self._headers = {"x-innkeeper-ignored": ", ".join(ignored)} if ignored else None
        self._names = names or {}
        self._leased = leased
        self._seen = seen
        self._began_s = time.perf_counter()
        self._usage = Usage()

    def response(self, request: Request) -> WatchedResponse:
        """Answers this request."""
        return WatchedResponse(self._services.live, lambda: self._work(request))

    async def _work(self, request: Request) -> Response:
        outcome = "cancelled"
        try:
            body = await self._rendered(await self._gather(request))
            outcome = "ok"
        except GatewayError as error:
            outcome = "error"
            error.param = self._names.get(error.param or "", error.param)
            note(request.scope, code=error.code)
            raise
        finally:
            self._account(request, outcome)
        return Response(body, media_type="application/json", headers=self._headers)

    async def _gather(self, request: Request) -> list[Part]:
        client = getattr(request.state, "client", None) or (request.client.host if request.client else "unknown")
        parts: list[Part] = []
        acquiring = self._services.residency.acquire(
            self._model, client=client, route=request.url.path, priority=self._ask.priority
        )
        async with acquiring as lease:
            if self._leased is not None:
                self._leased()
            # So that a cancelled request is cancelled now, and not when the iterator is collected.
            async with aclosing(lease.stream(self._ask)) as events:
                async for event in events:
                    if self._seen is not None:
                        self._seen(event)
                    if isinstance(event, Admitted):
                        self._services.metrics.admitted(self._model.id, time.perf_counter() - self._began_s)
                    elif isinstance(event, self._kind):
                        parts.append(event)
                    elif (finish := ending_of(event)) is not None:
                        self._usage = finish.usage
                        self._check(parts)
                        return parts
        raise without_end()

    def _check(self, parts: Sequence[Part]) -> None:
        """InternalError unless every input has its place: a vector that stands for another text is worse than none."""
        first = 0
        for part in parts:
            if part.first != first:
                raise InternalError(f"the model's worker answered input {part.first} where {first} was due")
            first += len(part.tokens)
        if first != self._inputs:
            raise InternalError(f"the model's worker answered {first} of {self._inputs} inputs")

    @property
    def _inputs(self) -> int:
        return len(self._ask.inputs if isinstance(self._ask, EmbedRequest) else self._ask.documents)

    async def _rendered(self, parts: Sequence[Part]) -> bytes:
        size = sum(len(part.data) if isinstance(part, Vectors) else 16 * len(part.raw) for part in parts)
        if size <= _INLINE_BYTES:
            return self._render(parts, self._usage)
        return await asyncio.to_thread(self._render, parts, self._usage)

    def _account(self, request: Request, outcome: str) -> None:
        tokens = self._usage.prompt_tokens
        inputs = self._inputs if outcome == "ok" else 0
        self._services.metrics.answered(
            self._model.id, outcome, prompt_tokens=tokens, completion_tokens=0, first_text_s=None, inputs=inputs
        )
        note(request.scope, model=self._model.id, outcome=outcome, tokens=tokens)
