"""What operators ask of the core: each verb is an event, and its answer comes in a future.

A caller that leaves takes its future with it and nothing else: what it asked for goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from gateway.errors import GatewayError
from gateway.residency import messages as core

__all__ = ["Operators"]


class Operators:
    """``handle`` gives the core an event, ``ids`` are shared with those of waiters. One writer: the event loop's thread."""

    def __init__(self, handle: Callable[[core.Event], None], ids: Iterator[int]) -> None:
        self._handle = handle
        self._ids = ids
        self._answers: dict[core.AdminId, asyncio.Future[core.AdminAnswer | GatewayError]] = {}

    async def load(self, model: str) -> core.AdminAnswer:
        """Returns when it is loaded."""
        return await self._ask(lambda admin: core.AdminLoad(admin, model))

    async def unload(self, model: str, mode: core.UnloadMode, deadline_s: float) -> core.AdminAnswer:
        """Returns when its bytes are released. Conflict: pinned, or in use for longer than the deadline."""
        return await self._ask(lambda admin: core.AdminUnload(admin, model, mode, deadline_s))

    async def pin(self, model: str) -> core.AdminAnswer:
        """Returns at once."""
        return await self._ask(lambda admin: core.Pin(admin, model))

    async def unpin(self, model: str) -> core.AdminAnswer:
        """Returns at once."""
        return await self._ask(lambda admin: core.Unpin(admin, model))

    def answer(self, admin: core.AdminId, answer: core.AdminAnswer | GatewayError) -> None:
        """The core's."""
        future = self._answers.pop(admin)
        if not future.done():
            future.set_result(answer)

    async def _ask(self, verb: Callable[[core.AdminId], core.Event]) -> core.AdminAnswer:
        admin = next(self._ids)
        future: asyncio.Future[core.AdminAnswer | GatewayError] = asyncio.get_running_loop().create_future()
        self._answers[admin] = future
        self._handle(verb(admin))
        answer = await future
        if isinstance(answer, GatewayError):
            raise answer
        return answer
