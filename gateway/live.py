"""The leased responses under way, so that a shutdown can wait for them, and end them."""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.errors import GatewayError

__all__ = ["Endable", "LiveResponses"]


class Endable(Protocol):
    """A response that can be told to end now."""

    def end_with(self, error: GatewayError) -> None: ...


class LiveResponses:
    """Each response adds itself when it begins and discards itself when its lease is back and its answer sent."""

    def __init__(self) -> None:
        self._responses: set[Endable] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._responses)

    def add(self, response: Endable) -> None:
        self._responses.add(response)
        self._idle.clear()

    def discard(self, response: Endable) -> None:
        self._responses.discard(response)
        if not self._responses:
            self._idle.set()

    def end_all(self, error: GatewayError) -> None:
        """Ends each with this error."""
        for response in tuple(self._responses):
            response.end_with(error)

    async def wait_idle(self) -> None:
        """Until there is none."""
        await self._idle.wait()
