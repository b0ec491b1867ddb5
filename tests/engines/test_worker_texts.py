"""A real worker process with an embedding model and with a reranker."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from engines.wire import (
    Close,
    Closed,
    EmbedRequest,
    Failed,
    Finished,
    LoadModel,
    MemoryReport,
    ModelSpec,
    Ready,
    ScoreRequest,
    Scores,
    Submit,
    TextPrompt,
    TextRequest,
    Vectors,
)
from tests.engines.encoders.helpers_tiny_encoders import write_tiny
from tests.engines.helpers_worker import raw_worker


def test_worker_serves_an_embedding_model(tmp_path: Path) -> None:
    file = write_tiny(tmp_path, "bert") / "model.safetensors"
    spec = ModelSpec(id="m", task="embedding", format="safetensors", paths=(str(file),))
    with raw_worker("--bare") as worker:
        worker.send(LoadModel(spec=spec, grant_bytes=1 << 24, cores=1))
        ready = worker.next(Ready)
        assert (ready.kv_bytes_per_token, ready.context) == (0, 64)
        worker.send(Submit(request_id=1, request=EmbedRequest(inputs=("w5 w6", "w7"))))
        events = worker.answers()
        (answer,) = [event for event in events if isinstance(event, Vectors)]
        vectors = np.frombuffer(answer.data, "<f4").reshape(2, answer.dims)
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
        worker.send(Submit(request_id=2, request=EmbedRequest(inputs=("w5 " * 100,))))
        (failed,) = worker.answers()
        assert isinstance(failed, Failed) and failed.error.code == "context_length_exceeded"
        worker.send(Submit(request_id=3, request=TextRequest(prompt=TextPrompt(text="hello"))))
        (failed,) = worker.answers()
        assert isinstance(failed, Failed) and failed.error.code == "invalid_request_error"
        assert worker.next(MemoryReport).kv == 0
        worker.send(Close())
        worker.next(Closed)
        assert worker.wait() == 0


def test_worker_serves_a_reranker(tmp_path: Path) -> None:
    file = write_tiny(tmp_path, "xlm-roberta", classifies=True) / "model.safetensors"
    spec = ModelSpec(id="m", task="rerank", format="safetensors", paths=(str(file),))
    with raw_worker("--bare") as worker:
        worker.send(LoadModel(spec=spec, grant_bytes=1 << 24))
        worker.next(Ready)
        documents = tuple(f"w{10 + i} " * (1 + i % 7) for i in range(300))
        worker.send(Submit(request_id=1, request=ScoreRequest(queries=("w5 w6",), documents=documents)))
        *_, answer, finished = worker.answers()
        assert isinstance(answer, Scores) and len(answer.raw) == len(answer.sigmoid) == 300
        assert isinstance(finished, Finished) and finished.usage.prompt_tokens == sum(answer.tokens)
        worker.send(Submit(request_id=2, request=ScoreRequest(queries=("w5 w6",), documents=documents[41:42])))
        alone = next(event for event in worker.answers() if isinstance(event, Scores))
        assert abs(alone.raw[0] - answer.raw[41]) < 1e-4


def test_worker_goes_on_after_a_panic_in_the_tokenizer(tmp_path: Path) -> None:
    """Which is no Exception in Python: it ended the thread that prepares, and every later request had no answer."""
    file = write_tiny(tmp_path, "bert") / "model.safetensors"
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    steps_in_vain = {"type": "Split", "pattern": {"Regex": "(w+)+$"}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer | {"pre_tokenizer": steps_in_vain}))
    spec = ModelSpec(id="m", task="embedding", format="safetensors", paths=(str(file),))
    with raw_worker("--bare") as worker:
        worker.send(LoadModel(spec=spec, grant_bytes=1 << 24, cores=1))
        worker.next(Ready)
        for request_id in (1, 2):
            worker.send(Submit(request_id=request_id, request=EmbedRequest(inputs=("w" * 40 + "!",))))
            (failed,) = worker.answers()
            assert isinstance(failed, Failed) and failed.error.code == "internal_error"
        worker.send(Submit(request_id=3, request=EmbedRequest(inputs=("w5",))))
        assert any(isinstance(event, Vectors) for event in worker.answers())
