"""Rows of models with recurrent states, served: they join, leave, are preempted and resume, and get what they get alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from engines.footprint import estimate
from engines.gguf.model import build_model
from engines.gguf.writer import write_checkpoint
from engines.header import read_header
from engines.scheduling.admission import KvAdmission, KvCost
from engines.text.batcher import Batcher
from engines.text.loader import build
from engines.text.row import Row, RowStarted
from engines.wire import Admitted, Finished, LoadModel, ModelSpec, Sampling, TextPrompt, TextRequest
from tests.engines.gguf.families import (
    test_falcon_h1,
    test_granitehybrid,
    test_kimi_linear,
    test_lfm2,
    test_mamba,
    test_mamba2,
    test_nemotron_h,
    test_qwen35,
)
from tests.engines.gguf.families.helpers_family import VOCABULARY, Case, floats_of, write_case
from tests.engines.gguf.helpers_vocabularies import bpe_vocabulary
from tests.engines.text.helpers_rows import GREEDY, FixedPacer, continue_alone, tokens_of

MODELS = (
    test_falcon_h1,
    test_granitehybrid,
    test_kimi_linear,
    test_lfm2,
    test_mamba,
    test_mamba2,
    test_nemotron_h,
    test_qwen35,
)
SERVED = [module.CASES[0] for module in MODELS]
ANSWER = 30  # tokens


def row(row_id: int, length: int) -> Row:
    """Expected to end within a step of the caches, which the longer ones do not."""
    prompt = tuple((7 * i + 13 * row_id) % VOCABULARY for i in range(length))
    return Row(row_id, prompt, ANSWER, least_tokens=length + 1, expected_tokens=length + 2, sampling=GREEDY)


LONG = [
    case for case in SERVED if case.id != "kimi-linear"
]  # which reads long prompts slowly, and joins in its own test


@pytest.mark.parametrize("case", LONG, ids=[case.id for case in LONG])
def test_rows_get_what_they_get_alone(case: Case, tmp_path: Path) -> None:
    built = build_model(read_header(write_case(tmp_path / "rows.gguf", case, floats_of(case)[1])))
    cost = KvCost(built.kv_bytes_per_token, state_bytes=built.state_bytes)
    grows = built.kv_bytes_per_token > 0
    batcher = Batcher(
        built.model,
        width=4,
        eos_ids=frozenset({VOCABULARY}),
        admission=KvAdmission(cost, 2 * cost.row_bytes(512)),
        pacer=FixedPacer(96),
    )
    rows = [row(0, 238), row(1, 30), row(2, 237), row(3, 239)]
    for each in rows:
        batcher.submit(each)
    grant, events, ticks = batcher.admission.grant_bytes, list[Any](), 0
    assert grant is not None
    while batcher.busy:
        events += batcher.step()
        assert batcher.kv_bytes <= grant
        if len(tokens_of(events, 1)) == 25:
            batcher.cancel(1)
        ticks += 1
        assert ticks < 600
    for each in rows:
        alone = continue_alone(built.model, each, frozenset())
        got = tokens_of(events, each.id)
        assert got == (alone[: len(got)] if each.id == 1 else alone)
        assert len(got) >= 3
    started = [event.id for event in events if isinstance(event, RowStarted)]
    # Where keys and values grow, rows have been put aside and read again; states alone never outgrow the grant.
    assert (len(started) > len(rows)) == grows


@pytest.mark.parametrize("case", SERVED, ids=[case.id for case in SERVED])
def test_caches_in_half_precision_take_what_is_said(case: Case, tmp_path: Path) -> None:
    """States are float32 all the same, and decays too."""
    path = write_case(tmp_path / "half.gguf", case, floats_of(case)[1])
    built = build_model(read_header(path), dtype="bfloat16")
    cache = make_prompt_cache(built.model)
    assert built.model(mx.array([[1, 2, 3]]), cache=cache).dtype == mx.bfloat16
    assert built.model(mx.array([[4]]), cache=cache).dtype == mx.bfloat16
    assert sum(layer.nbytes for layer in cache) == 256 * built.kv_bytes_per_token + built.state_bytes
    assert estimate(read_header(path), float_bytes=2).state_bytes == built.state_bytes
    parameters: Any = tree_flatten(built.model.parameters())
    assert all(value.dtype == mx.float32 for name, value in parameters if name.endswith("A_log"))


@pytest.mark.parametrize("case", [test_qwen35.CASES[0], test_falcon_h1.CASES[0]], ids=["qwen35", "falcon-h1"])
def test_engine_answers_with_a_grant_for_one_row_at_a_time(case: Case, tmp_path: Path) -> None:
    """The engine that is loaded knows what a row's states cost: with less than two of them, rows follow one another."""
    config = case.config | {"vocab_size": 352}
    _, tensors = floats_of(replace(case, config=config))
    values = {f"{case.architecture}.{key}": value for key, value in case.metadata.items()}
    values[f"{case.architecture}.vocab_size"] = 352
    vocabulary = bpe_vocabulary(352, "qwen2")
    path = write_checkpoint(tmp_path / "served.gguf", case.architecture, values, tensors, vocabulary)
    footprint = estimate(read_header(path))
    spec = ModelSpec(id="tiny", task="text", format="gguf", paths=(str(path),))
    engine = build(LoadModel(spec=spec, grant_bytes=2 * footprint.kv_bytes(256) - 1), lambda fraction: None)
    for request_id in range(2):
        prompt = TextPrompt(text=f"guest {request_id}")
        engine.submit(
            request_id, engine.prepare(TextRequest(prompt=prompt, max_tokens=4, sampling=Sampling(temperature=0.0)))
        )
    events: list[Any] = []
    while engine.busy:
        events += engine.step()
    ended = [event.request_id for event in events if isinstance(event, Finished)]
    admitted = [event.request_id for event in events if isinstance(event, Admitted)]
    assert ended == admitted == [0, 1]
    order = [event.request_id for event in events if isinstance(event, Admitted | Finished)]
    assert order == [0, 0, 1, 1]
