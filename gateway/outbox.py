"""Between the worker's pace and the client's: pieces of one answer that were made and not yet sent.

A delta is a piece of its own, so that a stream has the events its model made. Behind a client so slow that ``separate`` of
them wait, deltas of a choice join into its last piece, so that what waits more costs its text and no framing.
"""

from __future__ import annotations

import asyncio

from engines.wire import Finished
from gateway.errors import GatewayError
from gateway.protocols.completion import Piece

__all__ = ["SEPARATE_PIECES", "Outbox"]

SEPARATE_PIECES = 256


class Outbox:
    """One producer puts, then closes or fails it once; one sender waits and takes. Never blocks the producer.

    ``separate`` 0: all that waits of a choice is one piece, which is what an unstreamed answer takes.
    """

    def __init__(self, separate: int = SEPARATE_PIECES) -> None:
        self._separate = separate
        self._pieces: list[tuple[int, list[str]]] = []  # choice and texts
        self._last: dict[int, list[str]] = {}  # the texts of each choice's last piece
        self._finishes: dict[int, Finished] = {}
        self._waiter: asyncio.Future[bool] | None = None  # the sender's, while it waits
        self._waits_for_end = False
        self.ended = False  # nothing more will be put: closed or failed
        self.error: GatewayError | None = None
        self.waiting_bytes = 0  # UTF-8 bytes of text that were put and not taken

    def put(self, index: int, text: str) -> None:
        """Adds text of choice ``index``."""
        if self.ended or not text:
            return
        self._add(index, text)
        self.waiting_bytes += len(text) if text.isascii() else len(text.encode())

    def finish(self, index: int, finish: Finished) -> None:
        """Adds the end of choice ``index``."""
        if self.ended:
            return
        if index not in self._last:
            self._add(index, "")
        self._finishes[index] = finish

    def close(self) -> None:
        """Every choice has its end. Without effect once ended."""
        self.ended = True
        self._wake()

    def fail(self, error: GatewayError) -> None:
        """The answer ends here, with this error. Without effect once ended."""
        if not self.ended:
            self.error = error
            self.close()

    def take(self) -> list[Piece]:
        """All that waits, in order; the end of a choice comes with its last piece."""
        pieces = [
            Piece(index, "".join(texts), self._finishes.get(index) if texts is self._last[index] else None)
            for index, texts in self._pieces
        ]
        self._pieces.clear()
        self._last.clear()
        self._finishes.clear()
        self.waiting_bytes = 0
        return pieces

    async def wait(self, seconds: float) -> bool:
        """Until something waits or the answer ended; False when ``seconds`` passed first."""
        if self._pieces or self.ended:
            return True
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(seconds, _answer, self._waiter, False)
        try:
            return await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    async def wait_ended(self) -> None:
        """Until closed or failed."""
        if self.ended:
            return
        self._waits_for_end = True
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waits_for_end = False
            self._waiter = None

    def _add(self, index: int, text: str) -> None:
        last = self._last.get(index)
        if last is not None and len(self._pieces) >= self._separate:
            last.append(text)
        else:
            self._last[index] = texts = [text]
            self._pieces.append((index, texts))
        if not self._waits_for_end:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            _answer(self._waiter, True)


def _answer(waiter: asyncio.Future[bool], value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)
