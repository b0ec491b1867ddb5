"""What routes work with: one value in ``app.state.services``; and what they need of the residency.

The residency is named here by what routes call, so that they are tested against a recording fake.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.requests import Request

from engines.wire import DecodeTokens, EncodeChat, EncodeText, Event, Priority, TokenizerAnswer
from engines.wire import Request as ModelRequest
from gateway.live import LiveResponses
from gateway.metrics import Metrics
from gateway.protocols.options import Limits
from gateway.registry.catalog import Catalog, ResolvedModel
from gateway.residency.event_feed import EventFeed
from gateway.residency.explain import Explanation
from gateway.residency.reload import Reload
from gateway.residency.scheduling import ResidentScheduling
from gateway.residency.values import AdminAnswer, UnloadMode
from gateway.responses import BackgroundRuns, ResponseStore
from gateway.settings import Settings

__all__ = ["Lease", "Residency", "Services", "Tokenizer", "services_of"]


class Lease(Protocol):
    """A room's key: the model stays while it is held."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[Event, None]:
        """The request's events, the last of them terminal. Closing it cancels the request in the worker."""
        ...


class Tokenizer(Protocol):
    """Token ids of any model, loaded or not."""

    async def ask(
        self,
        model: ResolvedModel,
        what: EncodeText | EncodeChat | DecodeTokens,
        *,
        texts: bool = False,
        pieces: bool = False,
    ) -> TokenizerAnswer:
        """Takes no lease and loads nothing. GatewayError when there is no answer."""
        ...


class Residency(Protocol):
    """What routes and the server ask of whoever keeps models in memory."""

    @property
    def is_shutting_down(self) -> bool: ...

    async def start(self) -> None: ...

    async def shutdown(self) -> None:
        """Ends what waits and loads at once, lets leases run to the grace's end, closes every worker."""
        ...

    def acquire(
        self, model: ResolvedModel, *, client: str, route: str, priority: Priority = "normal"
    ) -> AbstractAsyncContextManager[Lease]:
        """Waits for the model, as ``priority`` says, and leases it. GatewayError when it cannot be had."""
        ...

    def keep_alive(self, model: ResolvedModel, seconds: float) -> None:
        """How long it stays after its last lease, or its TTL if that is longer; 0: it goes then; negative: it stays. Nothing
        where it is not loaded."""
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def note_files(self, model: ResolvedModel) -> None:
        """Tells it of a model whose files were repaired, replaced or lost since it last heard of them."""
        ...

    def statistics(self) -> Any:
        """A frozen snapshot."""
        ...

    def scheduling(self, model: str) -> ResidentScheduling | None:
        """What one model holds, and what its worker does now; None where there is nothing to tell."""
        ...

    def healthy(self, now: float) -> bool:
        """Whether the manager ticked lately; ``now`` in the event loop's time."""
        ...

    def ready(self) -> str | None:
        """Why no request could be served now, None when one can."""
        ...

    # What operators ask; each is described where it is done (``residency/shell.py``).

    @property
    def events(self) -> EventFeed: ...

    async def load(self, model: str) -> AdminAnswer: ...

    async def unload(self, model: str, mode: UnloadMode, deadline_s: float) -> AdminAnswer: ...

    async def pin(self, model: str) -> AdminAnswer: ...

    async def unpin(self, model: str) -> AdminAnswer: ...

    def plan(self, model: str) -> Explanation: ...

    def cancel_lease(self, lease_id: str) -> str: ...

    async def reload(self) -> Reload: ...


@dataclass(frozen=True)
class Services:
    """The parts of one gateway."""

    settings: Settings
    catalog: Catalog
    residency: Residency
    metrics: Metrics
    responses: ResponseStore
    live: LiveResponses = field(default_factory=LiveResponses)
    runs: BackgroundRuns = field(default_factory=BackgroundRuns)

    @property
    def limits(self) -> Limits:
        """What one request may hold."""
        return Limits(self.settings.server.max_inputs, self.settings.server.max_chars)


def services_of(request: Request) -> Services:
    """The services of the app that serves this request."""
    services: Services = request.app.state.services
    return services
