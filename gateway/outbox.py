"""Between the worker's pace and the client's: pieces of one answer that were made and not yet sent.

While the client is slow, deltas of a choice join into one piece, so that what waits costs its text and no framing.
"""

from __future__ import annotations

import asyncio

from engines.wire import Finished
from gateway.errors import GatewayError
from gateway.protocols.completion import Piece

__all__ = ["Outbox"]


class Outbox:
    """One producer puts, then closes or fails it once; one sender waits and takes. Never blocks the producer."""

    def __init__(self) -> None:
        self._texts: dict[int, list[str]] = {}  # by choice, in the order in which choices first waited
        self._finishes: dict[int, Finished] = {}
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self.error: GatewayError | None = None
        self.waiting_bytes = 0  # UTF-8 bytes of text that were put and not taken

    @property
    def ended(self) -> bool:
        """True when nothing more will be put: closed or failed."""
        return self._ended.is_set()

    def put(self, index: int, text: str) -> None:
        """Adds text of choice ``index``."""
        if self.ended or not text:
            return
        self._texts.setdefault(index, []).append(text)
        self.waiting_bytes += len(text) if text.isascii() else len(text.encode())
        self._changed.set()

    def finish(self, index: int, finish: Finished) -> None:
        """Adds the end of choice ``index``."""
        if self.ended:
            return
        self._texts.setdefault(index, [])
        self._finishes[index] = finish
        self._changed.set()

    def close(self) -> None:
        """Every choice has its end. Without effect once ended."""
        self._ended.set()
        self._changed.set()

    def fail(self, error: GatewayError) -> None:
        """The answer ends here, with this error. Without effect once ended."""
        if not self.ended:
            self.error = error
            self.close()

    def take(self) -> list[Piece]:
        """All that waits, at most one piece a choice."""
        pieces = [Piece(index, "".join(texts), self._finishes.get(index)) for index, texts in self._texts.items()]
        self._texts.clear()
        self._finishes.clear()
        self.waiting_bytes = 0
        self._changed.clear()
        return pieces

    async def wait(self, seconds: float) -> bool:
        """Until something waits or the answer ended; False when ``seconds`` passed first."""
        if self._changed.is_set() or self.ended:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def wait_ended(self) -> None:
        """Until closed or failed."""
        await self._ended.wait()
