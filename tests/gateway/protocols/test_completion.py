"""Whole completions, made of the pieces that a stream would have sent."""

from __future__ import annotations

from engines.wire import (
    Finished,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from gateway.protocols.completion import Call, Completion, Text, Thought, completions_of
from gateway.protocols.piece import ArgumentsPiece, CallPiece, EndPiece, Piece, TextPiece, ThoughtPiece, piece_of

END = Finished(request_id=1, reason="tool_calls", usage=Usage())


def test_pieces_are_what_events_say() -> None:
    token = TokenLogprob(1, b"a", -1.0)
    assert piece_of(2, TextDelta(request_id=1, text="a", tokens=(1,), logprobs=(token,))) == TextPiece(2, "a", (token,))
    assert piece_of(2, ReasoningDelta(request_id=1, text="a")) == ThoughtPiece(2, "a")
    assert piece_of(2, ToolCallStarted(request_id=1, index=3, id="c", name="f")) == CallPiece(2, 3, "c", "f")
    assert piece_of(2, ToolCallDelta(request_id=1, index=3, arguments="{")) == ArgumentsPiece(2, 3, "{")


def test_parts_are_in_the_models_order_whatever_else_came_between() -> None:
    tokens = tuple(TokenLogprob(i, b"x", -1.0) for i in range(3))
    pieces: list[Piece] = [
        ThoughtPiece(1, "h"),
        TextPiece(0, "a", tokens[:1]),
        ThoughtPiece(1, "m"),
        TextPiece(0, "b", tokens[1:2]),
        CallPiece(1, 0, "c0", "f"),
        CallPiece(1, 1, "c1", "f"),
        ArgumentsPiece(1, 1, "{"),
        EndPiece(0, END),
        ArgumentsPiece(1, 1, "}"),
        TextPiece(1, "so"),
        ThoughtPiece(1, "?"),
        EndPiece(1, END),
    ]
    first, second = completions_of(pieces)
    assert first == Completion(0, (Text("ab", tokens[:2]),), END)
    assert (first.text, first.logprobs, first.thought, first.calls) == ("ab", tokens[:2], "", ())
    calls = (Call("c0", "f", ""), Call("c1", "f", "{}"))
    assert second.parts == (Thought("hm"), *calls, Text("so"), Thought("?"))
    assert (second.text, second.thought, second.calls) == ("so", "hm?", calls)


def test_completion_may_be_empty() -> None:
    (empty,) = completions_of([EndPiece(0, END)])
    assert (empty.parts, empty.text) == ((), "")
