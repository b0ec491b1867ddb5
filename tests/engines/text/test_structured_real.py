"""Structured answers of real checkpoints: whatever the model, a complete answer is valid, alone and in any company."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engines.text.engine import GgufTextEngine
from engines.text.loader import build
from engines.wire import (
    ChatMessage,
    ChatPrompt,
    Event,
    Finished,
    Grammar,
    LoadModel,
    ModelSpec,
    Sampling,
    TextDelta,
    TextRequest,
)
from tests.engines.gguf.helpers_tiny import tiny_gguf
from tests.engines.text.helpers_schemas import SCHEMAS, check

WIDTH = 8


def load(path: Path) -> GgufTextEngine:
    spec = ModelSpec(id="m", task="text", format="gguf", paths=(str(path),), concurrency=WIDTH)
    return build(LoadModel(spec=spec), lambda fraction: None)


def asked(schema: Mapping[str, Any], seed: int, max_tokens: int) -> TextRequest:
    question = ChatMessage(role="user", content="Invent something as JSON.")
    return TextRequest(
        prompt=ChatPrompt(messages=(question,)),
        # Of a distribution as flat as a random model's, a draw now and then falls on a rounding error's edge, and differs
        # between a row alone and in a batch: what is compared is greedy.
        sampling=Sampling(temperature=0.9 * (seed % 2), top_p=0.95, seed=seed),
        max_tokens=max_tokens,
        grammar=Grammar(kind="json_schema", source=json.dumps(schema)),
    )


def answers(events: list[Event]) -> dict[int, tuple[str, str]]:
    """By request: the text, and how it finished."""
    found: dict[int, tuple[str, str]] = {}
    for event in events:
        if isinstance(event, Finished):
            text = "".join(e.text for e in events if isinstance(e, TextDelta) and e.request_id == event.request_id)
            found[event.request_id] = (text, event.reason)
    return found


def run(engine: GgufTextEngine, events: list[Event]) -> list[Event]:
    while engine.busy:
        events += engine.step()
    return events


def check_all(path: Path, max_tokens: int, most_cut: int, alone: int | None) -> None:
    """Every schema in batches of eight that rows join and leave, with a grant that shrinks in between; then one in ``alone``.

    ``alone`` is even, and so of greedy rows.
    """
    engine = load(path)
    requests = {id: asked(schema, id, max_tokens) for id, schema in enumerate(SCHEMAS.values())}
    prepared = {id: engine.prepare(request) for id, request in requests.items()}
    row_bytes = 256 * engine.info.kv_bytes_per_token
    events = list[Event]()
    for id, each in prepared.items():
        engine.submit(id, each)
        if id == WIDTH:
            while engine.memory().kv < 5 * row_bytes:
                events += engine.step()
            engine.set_grant(2 * row_bytes)  # the younger rows are preempted, and resume
            while engine.memory().kv > 2 * row_bytes:
                events += engine.step()
            engine.set_grant(100 * row_bytes)
    together = answers(run(engine, events))
    cut = 0
    for id, (name, schema) in enumerate(SCHEMAS.items()):
        text, reason = together[id]
        if reason == "length":
            cut += 1
        else:
            assert reason == "stop", name
            check(schema, text)
        if alone is None or id % alone:
            continue
        engine.submit(id, prepared[id])
        assert answers(run(engine, []))[id] == together[id], name
    assert cut <= most_cut


# Compiled products of the second compute with rounded activations, and its two likeliest tokens are within that rounding.
@pytest.mark.parametrize(("family", "alone"), [("llama", 2), ("gemma3", None)])
def test_model_of_random_weights_answers_by_twenty_schemas(family: str, alone: int | None, tmp_path: Path) -> None:
    check_all(tiny_gguf(tmp_path, family), max_tokens=120, most_cut=5, alone=alone)


@pytest.mark.slow
def test_smollm2_answers_by_twenty_schemas(smollm2_path: Path) -> None:
    check_all(smollm2_path, max_tokens=80, most_cut=4, alone=6)
