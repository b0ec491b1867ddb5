"""Streams of responses: whatever a model says, the official client can read it, and it is what the body says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from engines.wire import Finished, FinishReason, Usage
from gateway.errors import ModelUnloaded, WorkerDied
from gateway.protocols.completion import AnswerHead, completions_of
from gateway.protocols.piece import ArgumentsPiece, CallPiece, EndPiece, Piece, TextPiece, ThoughtPiece
from gateway.protocols.responses_object import Frame, interrupted
from gateway.protocols.responses_request import Shape, parse
from gateway.protocols.responses_stream import ResponseBody, ResponseStream

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
SHOWN = {**parse(b'{"model": "a", "input": "x"}').shown, "temperature": 1.0, "top_p": 1.0}
WORDS = st.text(min_size=1, max_size=3)


def frame(shape: Shape = Shape()) -> Frame:  # noqa: B008 (frozen)
    return Frame(AnswerHead("resp_1", 1700000000, "a"), SHOWN, shape, lambda: 1700000009.0)


def end(reason: FinishReason = "stop") -> EndPiece:
    return EndPiece(0, Finished(request_id=1, reason=reason, usage=Usage(prompt_tokens=3, completion_tokens=2)))


@st.composite
def answers(draw: st.DrawFn) -> list[Piece]:
    """Pieces of a whole answer."""
    pieces: list[Piece] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from(["text", "thought", "call"]), max_size=6)):
        if kind == "call":
            pieces.append(CallPiece(0, calls, f"call_{calls}", draw(WORDS)))
            pieces += [ArgumentsPiece(0, calls, text) for text in draw(st.lists(WORDS, max_size=3))]
            calls += 1
        else:
            pieces.append(TextPiece(0, draw(WORDS)) if kind == "text" else ThoughtPiece(0, draw(WORDS)))
    return [*pieces, end(draw(st.sampled_from(["stop", "length", "tool_calls"])))]


SHAPES = st.builds(Shape, summary=st.booleans(), sealed=st.booleans())


def events_of(stream: bytes) -> list[dict[str, Any]]:
    events = []
    for block in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, _, data = block.partition("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


@given(pieces=answers(), shape=SHAPES, cut=st.integers(0, 8))
def test_stream_is_read_by_the_official_client_and_ends_with_the_body(
    pieces: list[Piece], shape: Shape, cut: int
) -> None:
    stream = ResponseStream(frame(shape))
    events = events_of(stream.render(pieces[:cut]) + stream.render(pieces[cut:]) + stream.end())
    body = json.loads(ResponseBody(frame(shape))(completions_of(pieces)))
    assert events[-1]["response"] == body
    assert events[-1]["type"] == f"response.{body['status']}"
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in events:
        read = EVENT.validate_python(event)
        assert read.to_dict(mode="json", exclude_unset=False)["type"] == event["type"]
        state.handle_event(read)
    if body["status"] == "completed":
        final = state._completed_response
        assert final is not None and final.output_text == "".join(p.text for p in pieces if isinstance(p, TextPiece))
    Response.model_validate(body)


@given(pieces=answers(), shape=SHAPES)
def test_deltas_and_parts_add_up_to_the_items(pieces: list[Piece], shape: Shape) -> None:
    stream = ResponseStream(frame(shape))
    events = events_of(stream.render(pieces) + stream.end())
    for place, item in enumerate(events[-1]["response"]["output"]):
        own = [event for event in events if event.get("output_index") == place]
        assert (own[0]["type"], own[-1]["type"]) == ("response.output_item.added", "response.output_item.done")
        assert own[0]["item"]["id"] == item["id"] and own[0]["item"]["status"] == "in_progress"
        assert own[-1]["item"] == item
        delta = "".join(event["delta"] for event in own if event["type"].endswith(".delta"))
        done = next(event for event in own if event["type"].endswith((".done",)) and "item_id" in event)
        assert delta == done.get("text", done.get("arguments"))
        assert json.dumps(delta) in json.dumps(item)


@given(pieces=answers(), cut=st.integers(0, 8))
def test_failure_at_any_place_ends_the_item_tells_the_error_and_then_the_response(
    pieces: list[Piece], cut: int
) -> None:
    stream = ResponseStream(frame())
    rendered = stream.render(pieces[:-1][:cut])
    error = WorkerDied("it died", retry=False)
    kept = stream.conclude(error)
    events = events_of(rendered + stream.failure(error))
    *_, told, last = events
    assert (told["type"], told["code"], told["message"], told["param"]) == ("error", "worker_died", "it died", None)
    assert last["type"] == "response.failed"
    assert last["response"] == kept
    assert (kept["status"], kept["error"]["code"], kept["error"]["type"]) == ("failed", "server_error", "worker_died")
    assert sum(e["type"].endswith("item.added") for e in events) == sum(e["type"].endswith("item.done") for e in events)
    assert stream.over and stream.failed
    for event in events:
        EVENT.validate_python(event)


def test_nothing_said_yet_is_created_all_the_same() -> None:
    stream = ResponseStream(frame())
    assert [event["type"] for event in events_of(stream.render([]))] == ["response.created", "response.in_progress"]
    assert stream.render([]) == b""


def test_queued_is_told_until_it_is_worked_on() -> None:
    stream = ResponseStream(frame(), queued=True)
    first = stream.create()
    assert stream.response()["status"] == "queued"
    rest = stream.begin() + stream.begin() + stream.render([TextPiece(0, "x"), end()]) + stream.end()
    types = [event["type"] for event in events_of(first + rest)]
    assert types[:3] == ["response.created", "response.queued", "response.in_progress"]
    assert types.count("response.in_progress") == 1
    assert types[-1] == "response.completed"


def test_cancelled_keeps_what_was_made() -> None:
    stream = ResponseStream(frame(), queued=True)
    rendered = stream.create() + stream.render([TextPiece(0, "Hel")])
    kept = stream.conclude(cancelled=True)
    events = events_of(rendered + stream.cancellation())
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"] == kept
    assert (kept["status"], kept["error"], kept["incomplete_details"]) == ("cancelled", None, None)
    assert kept["output"][0]["content"][0]["text"] == "Hel"
    assert stream.conclude(ModelUnloaded("late")) == kept | {"output": kept["output"]}


def test_not_stored_is_shown() -> None:
    stream, body = ResponseStream(frame()), ResponseBody(frame())
    stream.stored = body.stored = False
    events = events_of(stream.render([end()]) + stream.end())
    assert events[-1]["response"]["store"] is False
    assert json.loads(body(completions_of([end()])))["store"] is False


def test_interrupted_is_failed_and_says_why() -> None:
    stream = ResponseStream(frame(), queued=True)
    response = json.loads(interrupted(json.dumps(stream.response()).encode()))
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert "the gateway ended" in response["error"]["message"]
    Response.model_validate(response)


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_empty_answer_is_an_empty_message(reason: FinishReason) -> None:
    (item,) = json.loads(ResponseBody(frame())(completions_of([end(reason)])))["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "")
