"""Between the worker's pace and the client's: pieces of one answer that were made and not yet sent.

A delta is a piece of its own, so that a stream has the events its model made. Behind a client so slow that ``separate`` of
them wait, deltas of a choice join into its last piece, so that what waits more costs its text and no framing. Log-probabilities
stay with the text whose tokens they are of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from engines.wire import Finished, TokenLogprob
from gateway.errors import GatewayError
from gateway.protocols.completion import Piece

__all__ = ["SEPARATE_PIECES", "Outbox"]

SEPARATE_PIECES = 256
_LOGPROB_BYTES = 100  # about what a token or an alternative with its log-probability takes as JSON


class _Waiting:
    """A piece that may still grow."""

    __slots__ = ("index", "logprobs", "texts")

    def __init__(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        self.index = index
        self.texts = [text]
        self.logprobs = [*logprobs] if logprobs else []


class Outbox:
    """One producer puts, then closes or fails it once; one sender waits and takes. Never blocks the producer.

    ``separate`` 0: all that waits of a choice is one piece, which is what an unstreamed answer takes.
    """

    def __init__(self, separate: int = SEPARATE_PIECES) -> None:
        self._separate = separate
        self._pieces: list[_Waiting] = []
        self._last: dict[int, _Waiting] = {}  # each choice's last piece
        self._finishes: dict[int, Finished] = {}
        self._waiter: asyncio.Future[bool] | None = None  # the sender's, while it waits
        self._waits_for_end = False
        self.ended = False  # nothing more will be put: closed or failed
        self.error: GatewayError | None = None
        self.waiting_bytes = 0  # that were put and not taken: UTF-8 of text, about what log-probabilities take

    def put(self, index: int, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        """Adds text of choice ``index``, and its tokens where they are shown. Either may be empty."""
        if self.ended or not (text or logprobs):
            return
        self._add(index, text, logprobs)
        self.waiting_bytes += len(text) if text.isascii() else len(text.encode())
        if logprobs:
            self.waiting_bytes += _LOGPROB_BYTES * sum(1 + len(token.top) for token in logprobs)

    def finish(self, index: int, finish: Finished) -> None:
        """Adds the end of choice ``index``."""
        if self.ended:
            return
        if index not in self._last:
            self._add(index, "", ())
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
            Piece(
                piece.index,
                "".join(piece.texts),
                self._finishes.get(piece.index) if piece is self._last[piece.index] else None,
                tuple(piece.logprobs),
            )
            for piece in self._pieces
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

    def _add(self, index: int, text: str, logprobs: Sequence[TokenLogprob]) -> None:
        last = self._last.get(index)
        if last is not None and len(self._pieces) >= self._separate:
            last.texts.append(text)
            last.logprobs += logprobs
        else:
            self._last[index] = piece = _Waiting(index, text, logprobs)
            self._pieces.append(piece)
        if not self._waits_for_end:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None:
            _answer(self._waiter, True)


def _answer(waiter: asyncio.Future[bool], value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)
