"""A response as it is made: streamed events with their sequence numbers, or one body.

::

    created  (queued)  in_progress  item*  completed | incomplete | failed | error failed

    message        output_item.added  content_part.added  output_text.delta*  output_text.done  content_part.done  output_item.done
    reasoning      output_item.added  content_part.added  reasoning_text.delta*  reasoning_text.done  content_part.done  …
      as summary   output_item.added  reasoning_summary_part.added  …summary_text.delta*  …summary_text.done  …summary_part.done  …
    function_call  output_item.added  function_call_arguments.delta*  function_call_arguments.done  output_item.done

An answer without any text, thinking or call is an empty message. There is no end marker: the event with the whole response is
the last. Source: OpenAI's API reference, "Streaming events".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engines.wire import Finished
from gateway.errors import GatewayError
from gateway.protocols.completion import Completion, Text
from gateway.protocols.piece import EndPiece, Piece
from gateway.protocols.responses_object import Frame, ItemStatus, Status, output_item, status_of
from gateway.protocols.responses_open_item import OpenItem, OpenMessage, opened

__all__ = ["ResponseBody", "ResponseStream"]

_encode = msgspec.json.Encoder().encode


class ResponseBody:
    """An unstreamed response, which is the same object that ends a stream."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._ended: float | None = None
        self.stored = True  # False: it should have been, and could not be

    def response(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The whole object; there is one completion."""
        (completion,) = completions
        finish = completion.finish
        status = status_of(finish)
        parts = completion.parts or (Text(""),)
        last = len(parts) - 1
        output = [
            output_item(self._frame, place, part, status if place == last else "completed")
            for place, part in enumerate(parts)
        ]
        self._ended = self._ended or self._frame.now()
        return self._frame.response(status, output, ended=self._ended, finish=finish, stored=self.stored)

    def __call__(self, completions: Sequence[Completion]) -> bytes:
        return _encode(self.response(completions))


class ResponseStream:
    """A streamed response. ``queued``: it waits, in the background, until ``begin`` is called."""

    media_type = "text/event-stream; charset=utf-8"
    keepalive = b": keep-alive\n\n"

    def __init__(self, frame: Frame, *, queued: bool = False) -> None:
        self.stored = True  # as of a body
        self.concluded = False  # its state will not change any more
        self.over = False  # its last event was rendered
        self._frame = frame
        self._status: Status = "queued" if queued else "in_progress"  # until it ends
        self._ending: Status = "failed"  # as what it ends, once it is concluded
        self._number = 0  # of the next event
        self._output: list[dict[str, Any]] = []  # whole items
        self._open: OpenItem | None = None
        self._finish: Finished | None = None
        self._error: GatewayError | None = None
        self._ended: float | None = None

    def response(self) -> dict[str, Any]:
        """The object as it is now: under way until its last event is rendered."""
        return self._whole() if self.over else self._frame.response(self._status, self._items("in_progress"))

    def create(self) -> bytes:
        """The events that come before anything else. Nothing once they were sent."""
        if self._number:
            return b""
        created = self._lifecycle("created")
        return created + self._lifecycle("queued" if self._status == "queued" else "in_progress")

    def begin(self) -> bytes:
        """It is worked on. Nothing for one that is, or is over."""
        if self._status != "queued":
            return b""
        before = self.create()
        self._status = "in_progress"
        return before + self._lifecycle("in_progress")

    def render(self, pieces: Sequence[Piece]) -> bytes:
        """Events of these pieces; the first ones whether there are any or not."""
        parts = [self.create()]
        if pieces:
            parts.append(self.begin())
        for piece in pieces:
            parts.append(self._piece(piece))
        return b"".join(parts)

    @property
    def failed(self) -> bool:
        """It ended with an error."""
        return self._error is not None

    def conclude(self, error: GatewayError | None = None, *, cancelled: bool = False) -> dict[str, Any]:
        """The whole response, before its last events are rendered. Idempotent: the first call settles how it ended."""
        if not self.concluded:
            self.concluded = True
            self._ended = self._frame.now()
            self._error = None if cancelled else error
            if cancelled:
                self._ending = "cancelled"
            elif error is not None or self._finish is None:
                self._ending = "failed"
            else:
                self._ending = status_of(self._finish)
                if not self._output and self._open is None:
                    self._open = OpenMessage(self._frame, 0)
        return self._whole()

    def end(self) -> bytes:
        """What is left of the last item, then the whole response."""
        before = self.create() + self.begin()
        self.conclude()
        return before + self._close(self._item_status) + self._last(self._ending)

    def failure(self, error: GatewayError) -> bytes:
        """The error as an event, then the failed response."""
        before = self.create()
        self.conclude(error)
        before += self._close("incomplete")
        told = {"code": error.code, "message": error.message, "param": error.param}
        return before + self._event("error", told) + self._last("failed")

    def cancellation(self) -> bytes:
        """The cancelled response; the API has no event of its own for it."""
        before = self.create()
        self.conclude(cancelled=True)
        return before + self._close("incomplete") + self._last("incomplete")

    @property
    def _item_status(self) -> ItemStatus:
        return "completed" if self._ending == "completed" else "incomplete"

    def _whole(self) -> dict[str, Any]:
        return self._frame.response(
            self._ending,
            self._items(self._item_status),
            ended=self._ended,
            finish=self._finish if self._error is None else None,
            error=self._error,
            stored=self.stored,
        )

    def _items(self, status: ItemStatus) -> list[dict[str, Any]]:
        """Those that are whole, and the one that is open, in this state."""
        return self._output if self._open is None else [*self._output, self._open.item(status)]

    def _piece(self, piece: Piece) -> bytes:
        if isinstance(piece, EndPiece):
            self._finish = piece.finish
            return b""
        if self._open is not None and self._open.takes(piece):
            return self._events(self._open.add(piece))
        closed = self._close("completed")
        self._open = opened(self._frame, len(self._output), piece)
        begun = self._events(self._open.begin())
        return closed + begun + self._events(self._open.add(piece))

    def _close(self, status: ItemStatus) -> bytes:
        """Ends the item that is open, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return b""
        before = b"" if item.begun else self._events(item.begin())
        self._output.append(item.item(status))
        return before + self._events(item.end(status))

    def _last(self, name: str) -> bytes:
        self.over = True
        return self._lifecycle(name)

    def _lifecycle(self, name: str) -> bytes:
        return self._event(f"response.{name}", {"response": self.response()})

    def _events(self, events: Sequence[tuple[str, dict[str, Any]]]) -> bytes:
        return b"".join([self._event(f"response.{name}", fields) for name, fields in events])

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        number, self._number = self._number, self._number + 1
        body = _encode({"type": name, "sequence_number": number, **fields})
        return b"event: %b\ndata: %b\n\n" % (name.encode(), body)
