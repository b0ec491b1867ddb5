"""What an answer is streamed as: pieces, the same for every protocol.

``index`` numbers the completions of one request from 0 (``completion.py``). The pieces of one completion come in this order::

    (TextPiece | ThoughtPiece | CallPiece ArgumentsPiece*)*  EndPiece

A call's pieces are not parted by others, and calls are numbered from 0 in the order in which they come.
"""

from __future__ import annotations

import msgspec

from engines.wire import Finished, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta, ToolCallStarted

__all__ = ["AnswerEvent", "ArgumentsPiece", "CallPiece", "EndPiece", "Piece", "TextPiece", "ThoughtPiece", "piece_of"]


class TextPiece(msgspec.Struct, frozen=True):
    """Text of the answer proper, and the tokens it covers where their log-probabilities were asked for. One may be empty."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ThoughtPiece(msgspec.Struct, frozen=True):
    """Text of the model's thinking, without the marks around it."""

    index: int
    text: str


class CallPiece(msgspec.Struct, frozen=True):
    """A tool call begins: its number, its id and the function's name."""

    index: int
    call: int
    id: str
    name: str


class ArgumentsPiece(msgspec.Struct, frozen=True):
    """A fragment of a call's arguments. All fragments of a whole call in a row are a JSON object."""

    index: int
    call: int
    text: str


class EndPiece(msgspec.Struct, frozen=True):
    """The end of a completion: why it ended, which stop matched, and its tokens."""

    index: int
    finish: Finished


AnswerEvent = TextDelta | ReasoningDelta | ToolCallStarted | ToolCallDelta
Piece = TextPiece | ThoughtPiece | CallPiece | ArgumentsPiece | EndPiece


def piece_of(index: int, event: AnswerEvent) -> Piece:
    """What an event of completion ``index`` adds to its answer."""
    match event:
        case TextDelta():
            return TextPiece(index, event.text, event.logprobs)
        case ReasoningDelta():
            return ThoughtPiece(index, event.text)
        case ToolCallStarted():
            return CallPiece(index, event.index, event.id, event.name)
        case ToolCallDelta():
            return ArgumentsPiece(index, event.index, event.arguments)
