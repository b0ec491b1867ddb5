"""Frames: round trips, cuts, limits."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.errors import ContextLengthExceeded, EngineError
from engines.scheduling.histogram import Recorder
from engines.wire import (
    MAX_FRAME_BYTES,
    Cancel,
    CapacityReport,
    CapacityRow,
    ChatMessage,
    ChatPrompt,
    Chunk,
    Close,
    DenyGrowth,
    EmbedRequest,
    Event,
    Events,
    Failed,
    Finished,
    FrameDecoder,
    FrameError,
    Hello,
    LoadModel,
    ModelSpec,
    PriorityCounts,
    Sampling,
    SchedulingReport,
    ScoreRequest,
    Scores,
    SetGrant,
    SimulateSpec,
    Submit,
    TextDelta,
    TextPrompt,
    TextRequest,
    TokenLogprob,
    ToWorker,
    Usage,
    Vectors,
    WireError,
    decode_request,
    decode_to_gateway,
    decode_to_worker,
    encode_frame,
    events_frames,
    submit_frames,
    to_wire,
)

REQUEST = TextRequest(
    prompt=ChatPrompt(
        messages=(ChatMessage(role="user", content="é 🙂", extra={"tool_calls": [{"id": "1"}]}),),
        template_kwargs={"enable_thinking": False},
    ),
    sampling=Sampling(temperature=0.5, seed=7),
    max_tokens=5,
    stop=("END",),
)

MESSAGES: list[ToWorker] = [
    LoadModel(
        spec=ModelSpec(id="m", task="text", format="sim", paths=(), simulate=SimulateSpec(weights_bytes=2**40)),
        grant_bytes=2**33,
        cores=2,
    ),
    Submit(request_id=2**63, request=REQUEST),
    Submit(request_id=1),
    Submit(request_id=2, request=EmbedRequest(inputs=("é", (1, 2)), dimensions=3)),
    Submit(request_id=3, request=ScoreRequest(queries=("q",), documents=("a", "b"))),
    Cancel(request_id=1),
    Chunk(request_id=1, blob=0, index=0, last=True, data=b"\x00\xff"),
    SetGrant(grant_bytes=1),
    DenyGrowth(request_id=1, most_bytes=2**40),
    Close(),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_wire_message_survives_the_socket(message: ToWorker) -> None:
    (body,) = FrameDecoder().feed(encode_frame(message))
    assert decode_to_worker(body) == message


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=40))
def test_wire_frames_come_out_whole_however_the_stream_is_cut(cuts: list[int]) -> None:
    data = b"".join(map(encode_frame, MESSAGES))
    decoder, bodies, at = FrameDecoder(), [], 0
    for cut in cuts:
        bodies += decoder.feed(data[at : at + cut])
        at += cut
    bodies += decoder.feed(data[at:])
    assert [decode_to_worker(body) for body in bodies] == MESSAGES


def test_wire_frame_above_the_limit_is_refused_on_both_sides() -> None:
    with pytest.raises(FrameError, match="at most 262144"):
        encode_frame(Chunk(request_id=1, blob=0, index=0, last=True, data=bytes(MAX_FRAME_BYTES)))
    with pytest.raises(FrameError, match="262145 bytes"):
        FrameDecoder().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_wire_noise_is_a_frame_error_or_a_message(body: bytes) -> None:
    for decode in (decode_to_worker, decode_to_gateway, decode_request):
        with contextlib.suppress(FrameError):
            decode(body)


def test_wire_each_side_refuses_the_other_sides_messages() -> None:
    (hello,) = FrameDecoder().feed(encode_frame(Hello(pid=1)))
    with pytest.raises(FrameError):
        decode_to_worker(hello)


def test_wire_large_request_goes_as_chunks_and_comes_back() -> None:
    request = TextRequest(prompt=TextPrompt(text="ü" * 500_000))
    frames = submit_frames(9, request)
    assert len(frames) > 3 and all(len(frame) <= MAX_FRAME_BYTES + 4 for frame in frames)
    *chunks, submit = [decode_to_worker(body) for body in FrameDecoder().feed(b"".join(frames))]
    assert submit == Submit(request_id=9)
    parts = [chunk for chunk in chunks if isinstance(chunk, Chunk)]
    assert [part.index for part in parts] == list(range(len(chunks))) and [p.last for p in parts].count(True) == 1
    assert decode_request(b"".join(part.data for part in parts)) == request


def test_wire_small_request_is_one_frame() -> None:
    assert len(submit_frames(1, REQUEST)) == 1


def test_wire_events_above_the_limit_are_split_in_order() -> None:
    events: list[Event] = [
        TextDelta(request_id=1, text="a" * 200_000, tokens=(1, 2)),
        TextDelta(request_id=2, text="é" * 300_000, tokens=(3, 4, 5)),
        Finished(request_id=1, reason="stop", usage=Usage()),
    ]
    frames = events_frames(events)
    back = [event for body in FrameDecoder().feed(b"".join(frames)) for event in _events(body)]
    for request_id in (1, 2):
        deltas = [event for event in back if isinstance(event, TextDelta) and event.request_id == request_id]
        (sent,) = [event for event in events if isinstance(event, TextDelta) and event.request_id == request_id]
        assert "".join(delta.text for delta in deltas) == sent.text
        assert tuple(token for delta in deltas for token in delta.tokens) == sent.tokens
    assert back[-1] == events[-1]


def test_wire_an_echoed_prompt_s_scores_are_split_though_it_has_no_tokens() -> None:
    entries = tuple(TokenLogprob(id, b"x" * 100, -1.0) for id in range(5_000))
    frames = events_frames([TextDelta(request_id=1, text="x", logprobs=entries)])
    back = [event for body in FrameDecoder().feed(b"".join(frames)) for event in _events(body)]
    deltas = [event for event in back if isinstance(event, TextDelta)]
    assert len(deltas) > 1
    assert "".join(delta.text for delta in deltas) == "x"
    assert tuple(entry for delta in deltas for entry in delta.logprobs) == entries


def test_wire_vectors_and_scores_reach_the_gateway() -> None:
    events: list[Event] = [
        Vectors(request_id=1, first=2, dims=1, data=b"\x00\x00\x80\x3f", tokens=(7,)),
        Scores(request_id=2, first=0, raw=(-1.5, 0.25), sigmoid=(0.18, 0.56), tokens=(3, 4)),
    ]
    (frame,) = events_frames(events)
    assert _events(FrameDecoder().feed(frame)[0]) == tuple(events)


def test_wire_failure_with_an_endless_message_is_shortened() -> None:
    event = Failed(request_id=1, error=WireError(code="internal_error", message="x" * 2**20))
    (frame,) = events_frames([event])
    (back,) = _events(FrameDecoder().feed(frame)[0])
    assert isinstance(back, Failed) and back.error.code == "internal_error" and set(back.error.message) == {"x"}


def test_wire_error_keeps_code_sentence_and_field() -> None:
    error: EngineError = ContextLengthExceeded("too long", param="messages")
    assert to_wire(error) == WireError(code="context_length_exceeded", message="too long", param="messages")
    error = ContextLengthExceeded("too long", tokens=12, most_tokens=9)
    assert (to_wire(error).tokens, to_wire(error).most_tokens) == (12, 9)


def test_wire_structs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Cancel(request_id=1).request_id = 2  # type: ignore[misc]
    assert all(struct.__struct_config__.frozen for struct in (Submit, Events, TextRequest, ModelSpec))
    assert issubclass(Submit, msgspec.Struct)


def _events(body: bytes) -> tuple[Event, ...]:
    message = decode_to_gateway(body)
    assert isinstance(message, Events)
    return message.events


def test_wire_scheduling_reports_survive_and_stay_small() -> None:
    recorder = Recorder()
    for seconds in (0.002, 0.03, 700.0):
        recorder.add(seconds)
    times = recorder.read()
    report = SchedulingReport(
        width=32,
        waiting=3,
        by_priority=PriorityCounts(interactive=1, batch=2),
        band="orange",
        headroom_bytes=0,
        inter_token=times,
        ttft=times,
    )
    frame = encode_frame(report)
    assert decode_to_gateway(frame[4:]) == report and len(frame) < 600
    capacity = CapacityReport(capacity=(CapacityRow(1, 8192), CapacityRow(2, 4096)), width=2)
    assert decode_to_gateway(encode_frame(capacity)[4:]) == capacity
