"""Whatever a worker says, the stream is one that Ollama's client reads, and says the same as the body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ollama import ChatResponse, GenerateResponse

from engines.wire import Finished, FinishReason, TokenLogprob, Usage
from gateway.errors import InternalError
from gateway.protocols.completion import AnswerHead, completions_of
from gateway.protocols.ollama_answer import OllamaStream, Shape, render_body, timestamp
from gateway.protocols.ollama_times import AnswerTimes
from gateway.protocols.piece import ArgumentsPiece, CallPiece, EndPiece, Piece, TextPiece, ThoughtPiece

HEAD = AnswerHead("id", 1, "m")
TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)


@st.composite
def answers(draw: st.DrawFn) -> list[Piece]:
    """The pieces of one completion, as ``piece.py`` orders them."""
    pieces: list[Piece] = []
    calls = 0
    for _ in range(draw(st.integers(0, 5))):
        match draw(st.sampled_from(["text", "thought", "call", "broken"])):
            case "text":
                text = draw(TEXTS)
                pieces.append(TextPiece(0, text, (TokenLogprob(1, text.encode(), -0.5),) * draw(st.integers(0, 1))))
            case "thought":
                pieces.append(ThoughtPiece(0, draw(TEXTS)))
            case kind:
                whole = json.dumps({draw(TEXTS): draw(TEXTS)})
                text = whole if kind == "call" else draw(st.sampled_from([whole[:-1], "[1]", "1", "{]"]))
                cut = draw(st.integers(0, len(text)))
                pieces += [CallPiece(0, calls, f"c{calls}", f"f{calls}"), ArgumentsPiece(0, calls, text[:cut])]
                pieces.append(ArgumentsPiece(0, calls, text[cut:]))
                calls += 1
    reason: FinishReason = draw(st.sampled_from(["stop", "length", "tool_calls"]))
    usage = Usage(prompt_tokens=draw(st.integers(0, 9)), completion_tokens=draw(st.integers(0, 9)))
    return [*pieces, EndPiece(0, Finished(request_id=1, reason=reason, usage=usage))]


def times() -> AnswerTimes:
    return AnswerTimes(lambda: 7)


def joined(lines: list[dict[str, Any]], shape: Shape) -> dict[str, Any]:
    """The object that a client puts together of a stream's lines."""
    said = [line["message"] if shape == "chat" else line for line in lines]
    text = "".join(part["content" if shape == "chat" else "response"] for part in said)
    thought = "".join(part.get("thinking", "") for part in said)
    calls = [call for part in said for call in part.get("tool_calls", ())]
    tokens = [token for line in lines for token in line.get("logprobs", ())]
    parts: dict[str, Any] = {"thinking": thought} if thought else {}
    parts |= {"tool_calls": calls} if calls else {}
    whole = {**lines[-1], **({"logprobs": tokens} if tokens else {})}
    if shape == "generate":
        return {**whole, "response": text, **parts}
    return {**whole, "message": {"role": "assistant", "content": text, **parts}}


@given(answers())
def test_chat_streamed_is_chat_whole(pieces: list[Piece]) -> None:
    stream = OllamaStream(HEAD, "chat", times(), lambda: 0.0)
    sent = b"".join(stream.keepalive + stream.render([piece]) for piece in pieces) + stream.end()
    lines = [json.loads(line) for line in sent.splitlines()]
    for line in lines:
        ChatResponse(**line)
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    whole = render_body(HEAD, completions_of(pieces), shape="chat", times=times(), now=lambda: 0.0)
    assert joined(lines, "chat") == json.loads(whole)


@given(answers())
def test_generate_streamed_is_generate_whole(pieces: list[Piece]) -> None:
    pieces = [piece for piece in pieces if not isinstance(piece, CallPiece | ArgumentsPiece)]
    stream = OllamaStream(HEAD, "generate", times(), lambda: 0.0)
    lines = [json.loads(line) for line in stream.render(pieces).splitlines()]
    for line in lines:
        GenerateResponse(**line)
    whole = render_body(HEAD, completions_of(pieces), shape="generate", times=times(), now=lambda: 0.0)
    assert joined(lines, "generate") == json.loads(whole)


@given(answers())
def test_nothing_of_a_broken_call_is_lost(pieces: list[Piece]) -> None:
    body = json.loads(render_body(HEAD, completions_of(pieces), shape="chat", times=times(), now=lambda: 0.0))
    called = [call["function"]["name"] for call in body["message"].get("tool_calls", ())]
    for piece in pieces:
        if isinstance(piece, CallPiece) and piece.name not in called:
            assert f'"name": "{piece.name}"' in body["message"]["content"]


def test_error_is_a_line_behind_what_was_said() -> None:
    stream = OllamaStream(HEAD, "chat", times())
    sent = stream.render([TextPiece(0, "Hel")]) + stream.keepalive + stream.failure(InternalError("it broke"))
    assert [json.loads(line) for line in sent.splitlines()][1:] == [{"error": "it broke"}]


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "1970-01-01T00:00:00.000000Z"), (1_700_000_000.25, "2023-11-14T22:13:20.250000Z")]
)
def test_timestamp_is_rfc_3339(seconds: float, shown: str) -> None:
    assert timestamp(seconds) == shown
