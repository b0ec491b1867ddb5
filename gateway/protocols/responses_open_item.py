"""Items of a response while they are made: which events they send, and what they are so far.

The sequences of events are drawn in ``responses_stream``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from engines.wire import TokenLogprob
from gateway.protocols.completion import Call, Part, Text, Thought
from gateway.protocols.openai_logprobs import chat_logprobs
from gateway.protocols.piece import ArgumentsPiece, CallPiece, Piece, TextPiece, ThoughtPiece
from gateway.protocols.responses_object import Frame, ItemStatus, item_id, output_item, text_part

__all__ = ["OpenItem", "OpenMessage", "opened"]

Events = list[tuple[str, dict[str, Any]]]


class OpenItem(ABC):
    """An item that is being made. Its events are named without ``response.``."""

    kind: str

    def __init__(self, frame: Frame, place: int) -> None:
        self.begun = False
        self._frame = frame
        self._place = place
        self._texts: list[str] = []
        self._at = {"item_id": item_id(frame, self.kind, place), "output_index": place}

    @property
    @abstractmethod
    def part(self) -> Part:
        """What it holds so far."""

    @abstractmethod
    def takes(self, piece: Piece) -> bool:
        """Whether the piece goes on with it."""

    def begin(self) -> Events:
        """It is there."""
        self.begun = True
        return [("output_item.added", {"output_index": self._place, "item": self._bare()})]

    @abstractmethod
    def add(self, piece: Piece) -> Events:
        """The piece, which it takes or began with."""

    def end(self, status: ItemStatus) -> Events:
        """It is whole, or nothing more comes."""
        return [("output_item.done", {"output_index": self._place, "item": self.item(status)})]

    def item(self, status: ItemStatus) -> dict[str, Any]:
        """As it is now."""
        return output_item(self._frame, self._place, self.part, status)

    def _bare(self) -> dict[str, Any]:
        """As it begins: without content."""
        return {**self.item("in_progress"), "content": []}

    @property
    def _text(self) -> str:
        return "".join(self._texts)


class OpenMessage(OpenItem):
    kind = "message"

    def __init__(self, frame: Frame, place: int) -> None:
        super().__init__(frame, place)
        self._tokens: list[TokenLogprob] = []
        self._at["content_index"] = 0

    @property
    def part(self) -> Text:
        return Text(self._text, tuple(self._tokens))

    def takes(self, piece: Piece) -> bool:
        return isinstance(piece, TextPiece)

    def begin(self) -> Events:
        return [*super().begin(), ("content_part.added", {**self._at, "part": text_part(self._frame, Text(""))})]

    def add(self, piece: Piece) -> Events:
        assert isinstance(piece, TextPiece)
        self._texts.append(piece.text)
        self._tokens += piece.logprobs
        return [("output_text.delta", {**self._at, "delta": piece.text, "logprobs": self._logprobs(piece.logprobs)})]

    def end(self, status: ItemStatus) -> Events:
        done = {**self._at, "text": self._text, "logprobs": self._logprobs(self._tokens)}
        part = text_part(self._frame, self.part)
        return [("output_text.done", done), ("content_part.done", {**self._at, "part": part}), *super().end(status)]

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        shown: list[dict[str, Any]] = chat_logprobs(tokens)["content"] if self._frame.shape.logprobs else []
        return shown


class OpenThought(OpenItem):
    kind = "reasoning"

    def __init__(self, frame: Frame, place: int) -> None:
        super().__init__(frame, place)
        self._summary = frame.shape.summary
        self._at["summary_index" if self._summary else "content_index"] = 0

    @property
    def part(self) -> Thought:
        return Thought(self._text)

    def takes(self, piece: Piece) -> bool:
        return isinstance(piece, ThoughtPiece)

    def begin(self) -> Events:
        name = "reasoning_summary_part.added" if self._summary else "content_part.added"
        return [*super().begin(), (name, {**self._at, "part": self._part("")})]

    def add(self, piece: Piece) -> Events:
        assert isinstance(piece, ThoughtPiece)
        self._texts.append(piece.text)
        return [(f"{self._name}.delta", {**self._at, "delta": piece.text})]

    def end(self, status: ItemStatus) -> Events:
        done = (f"{self._name}.done", {**self._at, "text": self._text})
        name = "reasoning_summary_part.done" if self._summary else "content_part.done"
        return [done, (name, {**self._at, "part": self._part(self._text)}), *super().end(status)]

    @property
    def _name(self) -> str:
        return "reasoning_summary_text" if self._summary else "reasoning_text"

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "summary_text" if self._summary else "reasoning_text", "text": text}

    def _bare(self) -> dict[str, Any]:
        bare = {**super()._bare(), "summary": []}
        bare.pop("encrypted_content", None)
        return bare


class OpenCall(OpenItem):
    kind = "function_call"

    def __init__(self, frame: Frame, place: int, piece: CallPiece) -> None:
        super().__init__(frame, place)
        self._call = piece

    @property
    def part(self) -> Call:
        return Call(self._call.id, self._call.name, self._text)

    def takes(self, piece: Piece) -> bool:
        return isinstance(piece, ArgumentsPiece) and piece.call == self._call.call

    def add(self, piece: Piece) -> Events:
        if isinstance(piece, CallPiece):
            return []  # its beginning
        assert isinstance(piece, ArgumentsPiece)
        self._texts.append(piece.text)
        return [("function_call_arguments.delta", {**self._at, "delta": piece.text})]

    def end(self, status: ItemStatus) -> Events:
        done = {**self._at, "name": self._call.name, "arguments": self._text}
        return [("function_call_arguments.done", done), *super().end(status)]

    def _bare(self) -> dict[str, Any]:
        return self.item("in_progress")


def opened(frame: Frame, place: int, piece: Piece) -> OpenItem:
    """The item that begins with this piece."""
    match piece:
        case TextPiece():
            return OpenMessage(frame, place)
        case ThoughtPiece():
            return OpenThought(frame, place)
        case CallPiece():
            return OpenCall(frame, place, piece)
    raise AssertionError(f"{piece} begins nothing")
