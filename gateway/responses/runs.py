"""Responses that are made in the background: each goes on when its client leaves, and its events can be read from any place on.

A *run* holds a lease like every other request, through the answer it calls; it only has no client of its own. Its events stay
for a while after its end, for those that are still reading and those that come back; then what was stored is all there is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.types import ASGIApp, Message

from gateway.errors import GatewayError, InternalError, RateLimited, ServerOverloaded

__all__ = ["BackgroundRuns", "Run"]

MAX_RUNS = 256  # under way: each keeps its events in memory
KEPT_BYTES = 32 * 1024**2  # of events of runs that have ended
_EVENT_END = b"\n\n"

logger = logging.getLogger("innkeeper.http")


class Run:
    """One response. ``events`` are those of its stream, each at the place that its sequence number says.

    ``owner`` may read it. ``snapshot`` gives the response as it is now, as JSON. ``failed`` is called with an error that the
    answer raised, and gives the events that tell of it.
    """

    def __init__(
        self,
        id: str,
        owner: str,
        *,
        snapshot: Callable[[], bytes],
        failed: Callable[[GatewayError], Awaitable[bytes]],
    ) -> None:
        self.id = id
        self.owner = owner
        self.snapshot = snapshot
        self.events: list[bytes] = []
        self.byte_count = 0
        self.ended = False  # no event will follow
        self.cancelled = False  # somebody asked for its end
        self._failed = failed
        self._changed = asyncio.Event()
        self._left = asyncio.Event()
        self._over = asyncio.Event()

    def add(self, events: bytes) -> None:
        """These follow."""
        parts = [part + _EVENT_END for part in events.split(_EVENT_END) if part and not part.startswith(b":")]
        self.events += parts
        self.byte_count += sum(map(len, parts))
        self._wake()

    async def watch(self, place: int, seconds: float) -> list[bytes]:
        """The events from this place on, once there is one or none will follow; none after ``seconds`` without."""
        if place >= len(self.events) and not self.ended:
            try:
                async with asyncio.timeout(seconds):
                    while place >= len(self.events) and not self.ended:
                        await self._changed.wait()
            except TimeoutError:
                pass
        return self.events[place:]

    def cancel(self) -> None:
        """Ends it, as a client that leaves ends its request. Idempotent."""
        if not self.ended:
            self.cancelled = True
            self._left.set()

    async def over(self) -> None:
        """Until it has ended and was stored."""
        await self._over.wait()

    async def perform(self, answer: ASGIApp, route: str, client: str) -> None:
        """Lets the answer be made, to its end."""
        scope: dict[str, Any] = {"type": "http", "path": route, "client": None, "state": {"client": client}}
        try:
            await answer(scope, self._receive, self._send)
            error: GatewayError | None = None
        except GatewayError as raised:
            error = raised
        except Exception:
            logger.exception("background response %s broke", self.id)
            error = InternalError("the gateway failed to make this response; its log says why")
        finally:
            self._left.set()
        try:
            if error is not None or self.cancelled:
                ending = error or InternalError("it was cancelled")
                self.add(await self._failed(ending))
        finally:
            self.ended = True
            self._wake()
            self._over.set()

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.add(message.get("body", b""))

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class BackgroundRuns:
    """Those under way, and the last that ended. One writer: the event loop."""

    def __init__(self) -> None:
        self._under_way: dict[str, Run] = {}
        self._ended: OrderedDict[str, Run] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._under_way)

    def check_room(self, owner: str, limit: int | None) -> None:
        """RateLimited for an owner that has ``limit`` under way, ServerOverloaded where there are too many of all."""
        own = sum(run.owner == owner for run in self._under_way.values())
        if limit is not None and own >= limit:
            message = (
                f"this key has {own} background responses under way, and its limit is {limit}; wait for one to end"
            )
            raise RateLimited(message, param="background", retry_after_s=1.0)
        if len(self._under_way) >= MAX_RUNS:
            raise ServerOverloaded(f"{MAX_RUNS} background responses are under way; wait for one to end")

    def start(self, run: Run, answer: ASGIApp, route: str, client: str) -> None:
        """Begins it. Returns at once."""
        self._under_way[run.id] = run
        task = asyncio.get_running_loop().create_task(self._perform(run, answer, route, client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def find(self, owner: str, id: str) -> Run | None:
        """One that is under way, or has ended a moment ago."""
        run = self._under_way.get(id) or self._ended.get(id)
        return run if run is not None and run.owner == owner else None

    async def wait_idle(self) -> None:
        """Until none is under way and what they came to is stored."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def forget(self, id: str) -> None:
        """It was deleted."""
        self._ended.pop(id, None)

    async def _perform(self, run: Run, answer: ASGIApp, route: str, client: str) -> None:
        try:
            await run.perform(answer, route, client)
        finally:
            del self._under_way[run.id]
            self._ended[run.id] = run
            while sum(ended.byte_count for ended in self._ended.values()) > KEPT_BYTES:
                self._ended.popitem(last=False)
