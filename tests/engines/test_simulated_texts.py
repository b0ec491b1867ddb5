"""Simulated embedding models and rerankers."""

from __future__ import annotations

import math
import struct

import pytest

from engines.errors import CheckpointError, ContextLengthExceeded, InvalidField, RequestError
from engines.simulated_texts import DIMENSIONS, SimulatedTextsEngine, build
from engines.wire import (
    Admitted,
    EmbedRequest,
    Event,
    Finished,
    LoadModel,
    ModelSpec,
    ScoreRequest,
    Scores,
    SimulateSpec,
    Task,
    Vectors,
)
from tests.engines.helpers_clock import FakeClock


def model(
    task: Task, clock: FakeClock | None = None, context: int | None = None, **simulate: float
) -> SimulatedTextsEngine:
    spec = ModelSpec(
        id="m",
        task=task,
        format="sim",
        paths=(),
        context=context,
        simulate=SimulateSpec(weights_bytes=7, **simulate),  # type: ignore[arg-type]
    )
    return build(LoadModel(spec=spec), lambda fraction: None, clock or FakeClock())


def run(engine: SimulatedTextsEngine, request: EmbedRequest | ScoreRequest, request_id: int = 1) -> list[Event]:
    engine.submit(request_id, engine.prepare(request))
    events: list[Event] = []
    while engine.busy:
        events += engine.step()
    return events


def test_vectors_have_length_one_and_are_nearer_for_texts_that_share_words() -> None:
    admitted, answer, finished = run(
        model("embedding"), EmbedRequest(inputs=("a red room", "the red room", "winter", (1, 2)))
    )
    assert isinstance(admitted, Admitted) and admitted.prompt_tokens == 9
    assert isinstance(answer, Vectors) and (answer.dims, answer.tokens) == (DIMENSIONS, (3, 3, 1, 2))
    rows = [struct.unpack_from(f"<{DIMENSIONS}f", answer.data, 4 * DIMENSIONS * i) for i in range(4)]
    assert all(math.isclose(sum(x * x for x in row), 1.0, rel_tol=1e-5) for row in rows)
    near, far = (sum(x * y for x, y in zip(rows[0], row, strict=True)) for row in rows[1:3])
    assert near > far
    assert isinstance(finished, Finished) and finished.usage.prompt_tokens == 9


def test_scores_rise_with_the_words_of_the_query_and_keep_their_order() -> None:
    answer = run(model("rerank"), ScoreRequest(queries=("red room",), documents=("a room", "winter", "Red room.")))[1]
    assert isinstance(answer, Scores)
    assert answer.raw == (0.0, -2.0, 2.0) and answer.tokens == (5, 4, 5)
    assert answer.sigmoid == pytest.approx([1 / (1 + math.exp(-raw)) for raw in answer.raw])


def test_requests_take_their_time_one_after_another() -> None:
    clock = FakeClock()
    engine = model("embedding", clock, ttft_s=1.0, tokens_per_s=10)
    engine.submit(2, engine.prepare(EmbedRequest(inputs=("x",))))
    run(engine, EmbedRequest(inputs=("a b c d e",)))
    assert clock.now() == pytest.approx(2.6, abs=0.05)


def test_cancelled_request_ends_and_the_next_one_goes_on() -> None:
    engine = model("embedding", ttft_s=100.0)
    engine.submit(1, engine.prepare(EmbedRequest(inputs=("a",))))
    engine.submit(2, engine.prepare(EmbedRequest(inputs=("b",))))
    engine.step()
    engine.cancel(1)
    events = engine.step()
    assert [(event.request_id, event.reason) for event in events if isinstance(event, Finished)] == [(1, "cancelled")]
    assert engine.busy


def test_what_a_real_model_refuses_is_refused() -> None:
    embedding, rerank = model("embedding", context=3), model("rerank", context=4)
    with pytest.raises(ContextLengthExceeded, match="input 1 has 4 tokens; this model reads 3 at most"):
        embedding.prepare(EmbedRequest(inputs=("a", "a b c d")))
    assert embedding.prepare(EmbedRequest(inputs=("a b c d",), truncate="start")).inputs == [["b", "c", "d"]]
    with pytest.raises(InvalidField, match="from 1 to 32"):
        embedding.prepare(EmbedRequest(inputs=("a",), dimensions=33))
    with pytest.raises(InvalidField, match="one query for all documents"):
        rerank.prepare(ScoreRequest(queries=("a", "b"), documents=("c",)))
    with pytest.raises(RequestError, match="scores documents, and nothing else"):
        rerank.prepare(EmbedRequest(inputs=("a",)))


def test_load_fails_where_the_entry_says_so() -> None:
    with pytest.raises(CheckpointError, match="no such room"):
        model("embedding", fail_load="no such room")  # type: ignore[arg-type]
