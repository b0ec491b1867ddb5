"""Between the worker's pace and the client's: pieces of one answer that were made and not yet sent.

A delta is a piece of its own, so that a stream has the events its model made. Behind a client so slow that ``separate`` of
them wait, those of a choice join into its last piece where that is of the same kind (of the same call, for arguments), so that
what waits more costs its text and no framing. Log-probabilities stay with the text whose tokens they are of.
"""

from __future__ import annotations

import asyncio

from engines.wire import TokenLogprob
from gateway.errors import GatewayError
from gateway.protocols.piece import ArgumentsPiece, CallPiece, EndPiece, Piece, TextPiece, ThoughtPiece

__all__ = ["SEPARATE_PIECES", "Outbox"]

SEPARATE_PIECES = 256
_LOGPROB_BYTES = 100  # about what a token or an alternative with its log-probability takes as JSON


class _Joined:
    """A piece that others of its kind may follow into."""

    __slots__ = ("logprobs", "piece", "texts")

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.texts: list[str] = []  # of what followed
        self.logprobs: list[TokenLogprob] = []

    def takes(self, piece: Piece) -> bool:
        """Whether this one may follow into it."""
        match self.piece:
            case TextPiece() | ThoughtPiece():
                return type(piece) is type(self.piece)
            case ArgumentsPiece(call=call):
                return isinstance(piece, ArgumentsPiece) and piece.call == call
            case _:
                return False

    def add(self, piece: Piece) -> None:
        if isinstance(piece, TextPiece):
            self.logprobs += piece.logprobs
        if isinstance(piece, TextPiece | ThoughtPiece | ArgumentsPiece):
            self.texts.append(piece.text)

    def whole(self) -> Piece:
        """The one piece."""
        first = self.piece
        if not self.texts:
            return first
        match first:
            case TextPiece():
                text = "".join([first.text, *self.texts])
                return TextPiece(first.index, text, (*first.logprobs, *self.logprobs))
            case ThoughtPiece():
                return ThoughtPiece(first.index, "".join([first.text, *self.texts]))
            case ArgumentsPiece():
                return ArgumentsPiece(first.index, first.call, "".join([first.text, *self.texts]))
            case _:
                return first


class Outbox:
    """One producer puts, then closes or fails it once; one sender waits and takes. Never blocks the producer.

    ``separate`` 0: what waits of a choice is joined as far as it can be, which is what an unstreamed answer takes.
    """

    def __init__(self, separate: int = SEPARATE_PIECES) -> None:
        self._separate = separate
        self._pieces: list[_Joined] = []
        self._last: dict[int, _Joined] = {}  # each choice's last piece
        self._waiter: asyncio.Future[bool] | None = None  # the sender's, while it waits
        self._waits_for_end = False
        self.ended = False  # nothing more will be put: closed or failed
        self.error: GatewayError | None = None
        self.waiting_bytes = 0  # that were put and not taken: UTF-8 of text, about what log-probabilities take

    def put(self, piece: Piece) -> None:
        """Adds it. Without effect once ended, and for a piece that says nothing."""
        if self.ended or not (size := _bytes(piece)):
            return
        self.waiting_bytes += size
        last = self._last.get(piece.index)
        if last is not None and len(self._pieces) >= self._separate and last.takes(piece):
            last.add(piece)
        else:
            self._last[piece.index] = joined = _Joined(piece)
            self._pieces.append(joined)
        if not self._waits_for_end:
            self._wake()

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
        """All that waits, in order."""
        pieces = [joined.whole() for joined in self._pieces]
        self._pieces.clear()
        self._last.clear()
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

    def _wake(self) -> None:
        if self._waiter is not None:
            _answer(self._waiter, True)


def _bytes(piece: Piece) -> int:
    """About what it takes; 0 for a piece that says nothing."""
    match piece:
        case TextPiece(logprobs=()) | ThoughtPiece() | ArgumentsPiece():
            return _utf8(piece.text)
        case TextPiece():
            return _utf8(piece.text) + _LOGPROB_BYTES * sum(1 + len(token.top) for token in piece.logprobs)
        case CallPiece():
            return _utf8(piece.id) + _utf8(piece.name) or 1
        case EndPiece():
            return 1


def _utf8(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _answer(waiter: asyncio.Future[bool], value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)
