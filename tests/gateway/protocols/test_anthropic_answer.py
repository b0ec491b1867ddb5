"""Anthropic's answers: any run of pieces is a stream, and a body, that the official client reads to the same message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.wire import Finished, FinishReason, Usage
from gateway.errors import WorkerDied
from gateway.protocols.anthropic_answer import MessageStream, render_body
from gateway.protocols.anthropic_thinking import Thoughts, thought_in
from gateway.protocols.completion import AnswerHead, completions_of
from gateway.protocols.piece import ArgumentsPiece, CallPiece, EndPiece, Piece, TextPiece, ThoughtPiece

HEAD = AnswerHead("msg_1", 1700000000, "m")


def end(reason: FinishReason = "stop", stop: str | None = None) -> EndPiece:
    usage = Usage(prompt_tokens=9, completion_tokens=5, cached_tokens=3, reasoning_tokens=2)
    return EndPiece(0, Finished(request_id=1, reason=reason, usage=usage, stop_sequence=stop))


def events_of(stream: bytes) -> list[tuple[str, Any]]:
    """Names and data."""
    lines = [block.split("\n") for block in stream.decode().removesuffix("\n\n").split("\n\n")]
    events = [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in lines]
    assert all(name == data["type"] for name, data in events)
    return events


@st.composite
def answers(draw: st.DrawFn) -> list[Piece]:
    """Pieces of a whole completion, as ``piece`` says in which order they come."""
    pieces: list[Piece] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(("text", "thought", "call")), max_size=6)):
        if kind == "text":
            pieces.append(TextPiece(0, draw(st.text(max_size=5))))
        elif kind == "thought":
            pieces.append(ThoughtPiece(0, draw(st.text(min_size=1, max_size=5))))
        else:
            arguments = json.dumps(draw(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3))))
            cut = draw(st.integers(0, len(arguments)))
            pieces.append(CallPiece(0, calls, f"call_{calls}", "f"))
            pieces += [ArgumentsPiece(0, calls, part) for part in (arguments[:cut], arguments[cut:]) if part]
            calls += 1
    pieces.append(end("tool_calls" if calls else draw(st.sampled_from(("stop", "length")))))
    return pieces


def client_reading(content: bytes, media_type: str) -> anthropic.Anthropic:
    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=content, headers={"content-type": media_type})

    http_client = anthropic.DefaultHttpxClient(transport=httpx2.MockTransport(answer))
    return anthropic.Anthropic(base_url="http://x", api_key="x", max_retries=0, http_client=http_client)


def stream_of(pieces: list[Piece], thoughts: Thoughts = "shown") -> bytes:
    stream = MessageStream(HEAD, "req-1", max_tokens=5, thoughts=thoughts)
    return b"".join(stream.render([piece]) for piece in pieces) + stream.end()


@settings(deadline=None, max_examples=40)
@given(answers(), st.sampled_from(("shown", "omitted", "hidden")))
def test_client_reads_the_same_message_streamed_and_whole(pieces: list[Piece], thoughts: Thoughts) -> None:
    asked: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    body = render_body(HEAD, completions_of(pieces), max_tokens=5, thoughts=thoughts)
    with client_reading(body, "application/json") as client:
        whole = client.messages.create(**asked)
    content = b": keep-alive\n\n" + MessageStream.keepalive + stream_of(pieces, thoughts)
    with client_reading(content, "text/event-stream") as client, client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    expected = {**whole.to_dict(), "stop_details": None}  # which the client adds to a stream's
    if thoughts == "hidden":  # texts around a hidden thought are one block of a stream
        assert _texts(streamed.to_dict()) == _texts(expected)
    else:
        assert streamed.to_dict() == expected


def _texts(message: Any) -> tuple[str, list[Any]]:
    text = "".join(block["text"] for block in message["content"] if block["type"] == "text")
    return text, [block for block in message["content"] if block["type"] != "text"]


@settings(deadline=None)
@given(answers(), st.booleans())
def test_events_come_in_anthropics_order(pieces: list[Piece], fails: bool) -> None:
    stream = MessageStream(HEAD, "req-1", max_tokens=5)
    content = stream.render(pieces[:-1] if fails else pieces)
    content += stream.failure(WorkerDied("signal 9")) if fails else stream.end()
    events = events_of(content)
    names = iter([name for name, _ in events])
    assert next(names) == "message_start"
    last = _blocks(names)
    assert [last, *names] == (["error"] if fails else ["message_delta", "message_stop"])
    indices = [data["index"] for name, data in events if name == "content_block_start"]
    assert indices == list(range(len(indices)))


def _blocks(names: Iterator[str]) -> str:
    """Reads whole blocks; the name after them. A failure may leave the last one open."""
    for name in names:
        if name != "content_block_start":
            return name
        while (name := next(names)) == "content_block_delta":
            pass
        if name == "error":
            return name
        assert name == "content_block_stop"
    raise AssertionError("the stream just stops")


def test_stream_begins_before_there_is_anything_to_say() -> None:
    stream = MessageStream(HEAD, "req-1", max_tokens=5)
    ((name, data),) = events_of(stream.render([]))
    assert (name, data["message"]["usage"]["input_tokens"]) == ("message_start", 0)
    assert stream.render([]) == b""
    assert events_of(stream.keepalive) == [("ping", {"type": "ping"})]


def test_stream_begins_with_the_tokens_of_the_prompt_where_they_are_known() -> None:
    stream = MessageStream(HEAD, "req-1", max_tokens=5)
    stream.admitted(9)
    ((_, start), *_, (_, delta)) = events_of(stream.render([TextPiece(0, "x"), end()]))
    assert start["message"]["usage"]["input_tokens"] == 9
    assert (delta["usage"]["input_tokens"], delta["usage"]["cache_read_input_tokens"]) == (6, 3)


@pytest.mark.parametrize(
    ("finish", "max_tokens", "expected"),
    [
        (end(), 5, ("end_turn", None)),
        (end(stop="END"), 5, ("stop_sequence", "END")),
        (end("length"), 5, ("max_tokens", None)),
        (end("length"), 6, ("model_context_window_exceeded", None)),
        (end("tool_calls"), 5, ("tool_use", None)),
    ],
)
def test_stop_reasons(finish: EndPiece, max_tokens: int, expected: tuple[str, str | None]) -> None:
    body = json.loads(render_body(HEAD, completions_of([finish]), max_tokens=max_tokens))
    assert (body["stop_reason"], body["stop_sequence"]) == expected


def test_omitted_thinking_is_in_the_signature_that_is_sent_back() -> None:
    pieces: list[Piece] = [ThoughtPiece(0, "Hm 🦊"), TextPiece(0, "Hi"), end()]
    body = json.loads(render_body(HEAD, completions_of(pieces), max_tokens=5, thoughts="omitted"))
    thinking, text = body["content"]
    assert (thinking["thinking"], text["text"]) == ("", "Hi")
    assert thought_in(thinking, "messages[1].content[0]") == "Hm 🦊"
