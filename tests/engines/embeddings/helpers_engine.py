"""Runs requests through an engine as the worker's device thread does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engines.embeddings import EncoderEmbeddingEngine, build
from engines.wire import EmbedRequest, Event, Failed, Finished, LoadModel, ModelSpec, Vectors

__all__ = ["embed", "engine_of", "run", "vectors"]


def engine_of(path: Path, grant_bytes: int | None = 1 << 30, **spec: Any) -> EncoderEmbeddingEngine:
    """Of a GGUF file, or of a directory with safetensors."""
    gguf = path.suffix == ".gguf"
    file = path if gguf else path / "model.safetensors"
    wanted = ModelSpec(id="m", task="embedding", format="gguf" if gguf else "safetensors", paths=(str(file),), **spec)
    return build(LoadModel(spec=wanted, grant_bytes=grant_bytes), lambda fraction: None)


def run(engine: Any) -> list[Event]:
    """Steps until there is nothing left to do."""
    events: list[Event] = []
    while engine.busy:
        events += engine.step()
    return events


def vectors(events: list[Event], request_id: int = 1) -> np.ndarray:
    """float32 [inputs, dims], in the order of the inputs."""
    parts = [event for event in events if isinstance(event, Vectors) and event.request_id == request_id]
    assert [part.first for part in parts] == list(np.cumsum([0, *(len(part.tokens) for part in parts[:-1])]))
    return np.concatenate([np.frombuffer(part.data, "<f4").reshape(-1, part.dims) for part in parts])


def embed(engine: EncoderEmbeddingEngine, *inputs: str | tuple[int, ...], **fields: Any) -> np.ndarray:
    """The vectors of one request."""
    engine.submit(1, engine.prepare(EmbedRequest(inputs=inputs, **fields)))
    events = run(engine)
    assert not any(isinstance(event, Failed) for event in events), events
    assert isinstance(events[-1], Finished) and events[-1].reason == "stop"
    return vectors(events)
