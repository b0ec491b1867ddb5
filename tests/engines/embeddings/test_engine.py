"""The embedding engine on tiny models: prompts, lengths, dimensions, batches, turns, cancels, memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.embeddings import EncoderEmbeddingEngine
from engines.encoders.batch_engine import BatchEngine
from engines.encoders.encoder import Encoded
from engines.errors import ContextLengthExceeded, EngineFailed, InvalidField, RequestError
from engines.wire import Admitted, EmbedRequest, Event, Failed, Finished, ScoreRequest, Vectors
from tests.engines.embeddings.helpers_engine import embed, engine_of, run, vectors
from tests.engines.encoders.helpers_tiny_encoders import write_safetensors, write_tiny
from tests.engines.encoders.helpers_tiny_gguf import write_tiny_gguf


def text(length: int, start: int = 5) -> str:
    """Words of the tiny vocabulary."""
    return " ".join(f"w{5 + (start + i) % 40}" for i in range(length))


def sentence_files(directory: Path, pooling: str = "mean", **settings: Any) -> None:
    """What sentence-transformers writes beside the weights."""
    kinds = ["Transformer", "Pooling", *settings.pop("modules", [])]
    paths = ["", "1_Pooling", *(f"{i}_{kind}" for i, kind in enumerate(kinds[2:], start=2))]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    modes = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken", "max": "max_tokens"}
    pooled = {f"pooling_mode_{mode}": name == pooling for name, mode in modes.items()}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooled}))
    (directory / "config_sentence_transformers.json").write_text(json.dumps(settings))


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "bert", "bert")


def test_batch_of_inputs_equals_each_alone_in_order(bert: Path) -> None:
    engine = engine_of(bert)
    inputs = [text(1 + i * 7 % 40, i) for i in range(40)]
    together = embed(engine, *inputs)
    alone = np.concatenate([embed(engine, each) for each in inputs])
    assert together.shape == (40, 32)
    assert np.abs(together - alone).max() < 1e-4
    assert np.allclose(np.linalg.norm(together, axis=1), 1.0, atol=1e-5)


def test_usage_counts_what_the_tokenizer_adds(bert: Path) -> None:
    engine = engine_of(bert)
    engine.submit(7, engine.prepare(EmbedRequest(inputs=(text(3), (9, 8)))))
    admitted, answer, finished = run(engine)
    assert isinstance(admitted, Admitted) and admitted.prompt_tokens == 7
    assert isinstance(answer, Vectors) and answer.tokens == (5, 2)
    assert isinstance(finished, Finished) and finished.usage.prompt_tokens == 7


@pytest.mark.parametrize(("pooling", "row"), [("cls", 0), ("last", -1)])
def test_pooling_is_the_one_that_the_files_name(bert: Path, pooling: str, row: int) -> None:
    sentence_files(bert, pooling)
    engine = engine_of(bert)
    features = np.array(engine._encoder([[2, 9, 8, 3]]).features)[0, row]
    assert np.abs(embed(engine, (2, 9, 8, 3), normalize=False)[0] - features).max() < 1e-5


def test_pooling_and_modules_that_are_not_supported_are_refused(bert: Path) -> None:
    sentence_files(bert, "max")
    with pytest.raises(Exception, match="pooling by pooling_mode_max_tokens is not supported"):
        engine_of(bert)
    sentence_files(bert, modules=["CNN"])
    with pytest.raises(Exception, match="the module CNN is not supported"):
        engine_of(bert)


def test_prompts_come_from_the_files_by_purpose(bert: Path) -> None:
    prompts = {"query": "w5 w6 ", "passage": "w7 "}
    sentence_files(bert, prompts=prompts, default_prompt_name="passage")
    engine = engine_of(bert)
    cases: list[tuple[Any, str]] = [("query", "w5 w6 "), ("document", "w7 "), (None, "w7 ")]
    for purpose, prompt in cases:
        engine.submit(1, engine.prepare(EmbedRequest(inputs=("w9",), purpose=purpose)))
        events = run(engine)
        tokens = next(event.tokens for event in events if isinstance(event, Vectors))
        assert tokens == (2 + len(prompt.split()) + 1,)
    with pytest.raises(InvalidField, match="takes no instruction") as refused:
        engine.prepare(EmbedRequest(inputs=("w9",), instruction="find"))
    assert refused.value.param == "instruction"


def test_qwen3_query_prompt_takes_the_instruction(tmp_path: Path) -> None:
    engine = engine_of(write_tiny(tmp_path / "qwen3", "qwen3"))
    queries = [
        engine.prepare(EmbedRequest(inputs=("w9",), purpose="query", instruction=task)) for task in ("w5", "w5 w6")
    ]
    assert [len(job.rows[0].ids) for job in queries] == [5, 6]  # "Instruct:", "w5", "Query:w9" and one at either end
    assert np.abs(embed(engine, "w9") - embed(engine, "w9", purpose="document")).max() == 0
    with pytest.raises(InvalidField, match="before queries"):
        engine.prepare(EmbedRequest(inputs=("w9",), purpose="document", instruction="w5"))


def test_too_long_an_input_is_refused_with_its_length_or_cut(bert: Path) -> None:
    engine = engine_of(bert)
    assert engine.info.context == 64
    with pytest.raises(ContextLengthExceeded, match="input 1 has 72 tokens; this model reads 64 at most") as refused:
        engine.prepare(EmbedRequest(inputs=("w5", text(70))))
    assert (refused.value.tokens, refused.value.most_tokens, refused.value.param) == (72, 64, "input")
    words = text(70).split()
    kept = {"start": " ".join(words[-62:]), "end": " ".join(words[:62])}
    for truncate, rest in kept.items():
        assert np.abs(embed(engine, text(70), truncate=truncate) - embed(engine, rest)).max() < 1e-6
    ids = tuple(range(5, 45)) * 2
    assert np.abs(embed(engine, ids, truncate="end") - embed(engine, ids[:64])).max() < 1e-6


def test_longest_input_is_that_of_the_files_or_of_the_entry(bert: Path) -> None:
    (bert / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 20}))
    assert engine_of(bert).info.context == 20
    assert engine_of(bert, context=12).info.context == 12


def test_dimensions_are_cut_and_renormalised_where_the_model_is_made_for_it(bert: Path) -> None:
    engine = engine_of(bert)
    with pytest.raises(InvalidField, match="have 32 and are not made to be cut") as refused:
        engine.prepare(EmbedRequest(inputs=("w5",), dimensions=8))
    assert refused.value.param == "dimensions"
    assert embed(engine, "w5", dimensions=32).shape == (1, 32)
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**config, "matryoshka_dimensions": [8, 16]}))
    engine = engine_of(bert)
    whole, cut = embed(engine, "w5 w6")[0], embed(engine, "w5 w6", dimensions=8)[0]
    assert np.allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)
    with pytest.raises(InvalidField, match="allows 8 or 16"):
        engine.prepare(EmbedRequest(inputs=("w5",), dimensions=9))


def test_token_ids_outside_of_the_vocabulary_are_refused(bert: Path) -> None:
    engine = engine_of(bert)
    for wrong in ((48,), (-1,), ()):
        with pytest.raises(InvalidField):
            engine.prepare(EmbedRequest(inputs=(wrong,)))
    with pytest.raises(RequestError):
        engine.prepare(ScoreRequest(queries=("w5",), documents=("w6",)))  # type: ignore[arg-type]


def test_dense_layers_follow_the_pooling(bert: Path) -> None:
    sentence_files(bert, modules=["Dense", "Normalize"])
    dense = bert / "2_Dense"
    dense.mkdir()
    rng = np.random.default_rng(3)
    weight, bias = rng.standard_normal((6, 32)).astype(np.float32), rng.standard_normal(6).astype(np.float32)
    (dense / "config.json").write_text(json.dumps({"activation_function": "torch.nn.modules.activation.Tanh"}))
    write_safetensors(dense / "model.safetensors", {"linear.weight": weight, "linear.bias": bias})
    engine = engine_of(bert)
    pooled = np.array(engine._encoder([[2, 9, 3]]).features)[0].mean(axis=0)
    assert np.abs(embed(engine, (2, 9, 3), normalize=False)[0] - np.tanh(weight @ pooled + bias)).max() < 1e-4


def test_gguf_pooling_and_family_s_prompts(tmp_path: Path) -> None:
    engine = engine_of(write_tiny_gguf(tmp_path / "nomic.gguf", "nomic_bert"))
    assert engine._recipe.pooling == "mean" and engine._recipe.prompts.query == "search_query: "
    engine = engine_of(write_tiny_gguf(tmp_path / "cls.gguf", "bert", {"bert.pooling_type": 2}))
    assert engine._recipe.pooling == "cls" and engine._recipe.dimensions is None
    assert engine_of(write_tiny_gguf(tmp_path / "qwen3.gguf", "qwen3"))._recipe.pooling == "last"


def test_large_answer_comes_in_events_that_fit_frames(bert: Path) -> None:
    engine = engine_of(bert)
    engine.submit(1, engine.prepare(EmbedRequest(inputs=("w5 w6",) * 2048)))
    events = run(engine)
    parts = [event for event in events if isinstance(event, Vectors)]
    assert len(parts) == 2 and all(len(part.data) <= 128 * 1024 for part in parts)
    assert vectors(events).shape == (2048, 32)


# --- turns ----------------------------------------------------------------------------------------------------------


def submit(engine: EncoderEmbeddingEngine, request_id: int, *inputs: str) -> None:
    engine.submit(request_id, engine.prepare(EmbedRequest(inputs=inputs)))


def ended(events: list[Event]) -> list[int]:
    return [event.request_id for event in events if isinstance(event, Finished)]


def test_short_request_does_not_wait_for_a_long_one(bert: Path) -> None:
    engine = engine_of(bert, concurrency=4)
    submit(engine, 1, *[text(40, i) for i in range(64)])
    engine.step()
    submit(engine, 2, text(3))
    events = list(engine.step()) + list(engine.step())
    assert ended(events) == [2]
    assert ended(run(engine)) == [1]


def test_requests_share_batches_by_length(bert: Path) -> None:
    engine = engine_of(bert)
    for request_id in range(1, 9):
        submit(engine, request_id, text(10, request_id))
    assert sorted(ended(list(engine.step()))) == list(range(1, 9))


def test_cancelled_request_leaves_the_queue_and_the_others_go_on(bert: Path) -> None:
    engine = engine_of(bert, concurrency=2)
    submit(engine, 1, *[text(20, i) for i in range(20)])
    submit(engine, 2, text(9))
    events = [*engine.step()]
    engine.cancel(1)
    engine.cancel(99)
    events += run(engine)
    reasons = {event.request_id: event.reason for event in events if isinstance(event, Finished)}
    assert reasons == {1: "cancelled", 2: "stop"}
    assert not any(isinstance(event, Vectors) and event.request_id == 1 for event in events)


def test_text_longer_than_a_step_goes_layer_by_layer_and_others_take_turns(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(bert)
    monkeypatch.setattr("engines.encoders.batch_engine.STEP_S", 0.0)
    monkeypatch.setattr(engine._pace, "expected_s", lambda tokens: 1.0 if tokens > 30 else 0.0)
    submit(engine, 1, text(50))
    steps = [engine.step()]
    submit(engine, 2, text(4))
    while engine.busy:
        steps.append(engine.step())
    order = [request_id for events in steps for request_id in ended(list(events))]
    assert order == [2, 1] and len(steps) >= len(engine._encoder.blocks)
    monkeypatch.undo()
    assert np.abs(vectors([e for events in steps for e in events], 1) - embed(engine_of(bert), text(50))).max() < 1e-5


def test_batch_of_short_texts_beside_one_that_goes_layer_by_layer_does_not_take_its_place(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(bert)
    monkeypatch.setattr("engines.encoders.batch_engine.STEP_S", 0.0)
    monkeypatch.setattr(engine._pace, "expected_s", lambda tokens: 1.0 if tokens > 30 else 0.0)
    submit(engine, 1, text(50))
    engine.step()
    submit(engine, 2, *[text(20, i) for i in range(8)])  # each is short; together they are not
    events = run(engine)
    assert ended(events) == [2, 1]
    monkeypatch.undo()
    assert np.abs(vectors(events, 1) - embed(engine_of(bert), text(50))).max() < 1e-5


def test_cancel_ends_a_long_text_between_layers(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(bert)
    monkeypatch.setattr("engines.encoders.batch_engine.STEP_S", 0.0)
    submit(engine, 1, text(50))
    engine.step()
    assert engine.busy
    engine.cancel(1)
    assert ended(list(engine.step())) == [1] and not engine.busy


# --- memory ---------------------------------------------------------------------------------------------------------


def test_text_too_long_for_the_grant_asks_for_more_and_short_ones_do_not_wait(bert: Path) -> None:
    engine = engine_of(bert, grant_bytes=0)
    shape = engine._encoder.shape
    engine.set_grant(shape.row_bytes(20, 4))
    submit(engine, 1, text(40))
    submit(engine, 2, text(5))
    assert ended(run(engine)) == [2]
    growth = engine.growth()
    assert growth is not None and growth.request_id == 1
    assert growth.bytes == shape.row_bytes(42, 4) - shape.row_bytes(20, 4)
    engine.set_grant(shape.row_bytes(20, 4) + growth.bytes)
    assert engine.growth() is None and ended(run(engine)) == [1]


def test_denied_growth_fails_the_request_with_the_numbers(bert: Path) -> None:
    engine = engine_of(bert, grant_bytes=1)
    submit(engine, 1, text(40))
    engine.deny_growth(1, engine._encoder.shape.row_bytes(30, 4))
    (failed,) = run(engine)
    assert isinstance(failed, Failed) and failed.error.code == "context_length_exceeded"
    assert (failed.error.tokens, failed.error.most_tokens) == (42, 30)
    assert engine.growth() is None


def test_broken_forward_pass_answers_everybody_then_breaks(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(bert)

    def broken(self: BatchEngine, encoded: Encoded) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(EncoderEmbeddingEngine, "finish_batch", broken)
    submit(engine, 1, text(3))
    submit(engine, 2, text(30))
    events = engine.step()
    assert {event.request_id for event in events if isinstance(event, Failed)} == {1, 2}
    with pytest.raises(EngineFailed):
        engine.step()


def test_close_ends_what_runs(bert: Path) -> None:
    engine = engine_of(bert)
    submit(engine, 1, text(3))
    engine.close()
    assert ended(run(engine)) == [1]
