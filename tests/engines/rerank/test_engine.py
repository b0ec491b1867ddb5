"""The rerank engine on tiny models: pairs, lengths, order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.encoders.tokenizer import json_tokenizer
from engines.errors import ContextLengthExceeded, InvalidField, RequestError
from engines.rerank import EncoderRerankEngine, build
from engines.rerank.pairs import JudgedPairs
from engines.wire import EmbedRequest, LoadModel, ModelSpec, ScoreRequest, Scores
from tests.engines.embeddings.helpers_engine import run
from tests.engines.encoders.helpers_tiny_encoders import write_tiny


def engine_of(directory: Path) -> EncoderRerankEngine:
    spec = ModelSpec(id="m", task="rerank", format="safetensors", paths=(str(directory / "model.safetensors"),))
    return build(LoadModel(spec=spec, grant_bytes=1 << 28), lambda fraction: None)


@pytest.fixture
def bert(tmp_path: Path) -> EncoderRerankEngine:
    return engine_of(write_tiny(tmp_path / "bert", "bert", classifies=True))


def scores(engine: EncoderRerankEngine, request: ScoreRequest) -> Scores:
    engine.submit(1, engine.prepare(request))
    (answer,) = [event for event in run(engine) if isinstance(event, Scores)]
    return answer


def test_pair_has_separators_and_types(bert: EncoderRerankEngine) -> None:
    (row,) = bert.prepare(ScoreRequest(queries=("w5 w6",), documents=("w9",))).rows
    assert (row.ids, row.types) == ([2, 5, 6, 3, 9, 3], [0, 0, 0, 0, 1, 1])


def test_scores_are_in_the_order_of_the_documents(bert: EncoderRerankEngine) -> None:
    documents = tuple(" ".join(f"w{5 + (i + j) % 43}" for j in range(1 + i % 11)) for i in range(30))
    together = scores(bert, ScoreRequest(queries=("w5 w6",), documents=documents))
    alone = [scores(bert, ScoreRequest(queries=("w5 w6",), documents=(each,))).raw[0] for each in documents]
    assert np.abs(np.array(together.raw) - alone).max() < 1e-4
    assert np.allclose(together.sigmoid, 1 / (1 + np.exp(-np.array(together.raw))))
    paired = scores(bert, ScoreRequest(queries=("w7", "w5 w6"), documents=(documents[3], documents[4])))
    assert abs(paired.raw[1] - alone[4]) < 1e-4 < abs(paired.raw[0] - alone[3])


def test_document_that_is_too_long_is_refused_or_loses_its_tokens(bert: EncoderRerankEngine) -> None:
    long = " ".join(f"w{5 + i % 43}" for i in range(80))
    with pytest.raises(ContextLengthExceeded, match="document 1 with its query has 84 tokens; this model reads 64"):
        bert.prepare(ScoreRequest(queries=("w5",), documents=("w6", long)))
    for truncate, kept in (("end", [5, 6, 7]), ("start", [39, 40, 41])):
        (row,) = bert.prepare(ScoreRequest(queries=("w5",), documents=(long,), truncate=truncate)).rows  # type: ignore[arg-type]
        assert len(row.ids) == 64 and row.ids[:3] == [2, 5, 3]
        assert row.ids[3:6] == kept if truncate == "end" else row.ids[-4:-1] == kept
    (row,) = bert.prepare(ScoreRequest(queries=("w5",), documents=(long,), document_tokens=2)).rows
    assert row.ids == [2, 5, 3, 5, 6, 3]
    with pytest.raises(ContextLengthExceeded, match="the query, without any document") as refused:
        bert.prepare(ScoreRequest(queries=(long,), documents=("w6",), truncate="end"))
    assert refused.value.param == "query"


def test_requests_that_make_no_sense_are_refused(bert: EncoderRerankEngine) -> None:
    with pytest.raises(InvalidField, match="2 queries for 1 documents"):
        bert.prepare(ScoreRequest(queries=("w5", "w6"), documents=("w7",)))
    with pytest.raises(InvalidField, match="takes no instruction"):
        bert.prepare(ScoreRequest(queries=("w5",), documents=("w7",), instruction="judge"))
    with pytest.raises(RequestError):
        bert.prepare(EmbedRequest(inputs=("w5",)))  # type: ignore[arg-type]


def test_qwen3_s_prompt_frames_instruction_query_and_document(tmp_path: Path) -> None:
    write_tiny(tmp_path, "qwen3")
    pairs = JudgedPairs(json_tokenizer(tmp_path), 64)
    plain, told = (
        pairs.rows(ScoreRequest(queries=("w5",), documents=("w6 w7",), instruction=task))[0].ids
        for task in (None, "w9")
    )
    # Whole words: the default task has more of them; "w9" is known, as are query and document.
    assert told.count(9) == 1 and told.count(5) == 1 and told.count(7) == 1
    assert (
        len(plain) - len(told)
        == len(
            [
                "Given",
                "a",
                "web",
                "search",
                "query,",
                "retrieve",
                "relevant",
                "passages",
                "that",
                "answer",
                "the",
                "query",
            ]
        )
        - 1
    )
    with pytest.raises(ContextLengthExceeded):
        pairs.rows(ScoreRequest(queries=("w5",), documents=("w6 " * 70,)))
