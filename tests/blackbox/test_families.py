"""Tiny checkpoints of every family through the gateway: each is loaded by a worker and answers as its model does alone, and one
that is damaged is refused with what is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.gguf.writer import CheckpointTensor
from tests.blackbox.helpers_gateway import Gateway, bounded, running_gateway
from tests.engines.gguf.families.helpers_family import Case, floats_of, write_case
from tests.engines.gguf.families.helpers_served import PROMPT_TEXT, TOKENIZER, alone, write_served
from tests.engines.gguf.families.table import cases

CASES = {case.id: case for case in cases()}
UNLIKE = ("deepseek-v3", "gpt-oss", "gemma4-shared", "nemotron_h_moe", "qwen35")
"""Latents and experts; sinks; layers that share their keys and values; state spaces beside attention; delta nets."""
MAX_TOKENS = 6
AT_A_TIME = 2  # as many loads as the machines that run the tests have cores
BOUND_S = 600.0  # of all answers on a machine that does much else

# Room for four workers of some 60 MiB, which are nearly all libraries: further ones take the place of those.
REGISTRY = """
memory: {budget: 256MiB}
defaults: {queue_timeout_s: 600}
models:
"""


def registry(paths: Mapping[str, Path]) -> str:
    models = (f"  - {{id: {name}, source: {path}, context: 128}}\n" for name, path in paths.items())
    return REGISTRY + "".join(models)


async def complete(gateway: Gateway, name: str) -> tuple[int, str]:
    """The status, and the answer's text or the error's message."""
    body = {"model": name, "prompt": PROMPT_TEXT, "max_tokens": MAX_TOKENS, "temperature": 0}
    response = await bounded(gateway.client.post("/v1/completions", json=body, timeout=BOUND_S), BOUND_S)
    answer: dict[str, Any] = response.json()
    return response.status_code, answer["error"]["message"] if "error" in answer else answer["choices"][0]["text"]


async def check_answers(directory: Path, chosen: Iterable[Case]) -> None:
    paths = {case.id: write_served(directory / f"{case.id}.gguf", case) for case in chosen}
    expected = {name: (200, alone(path, MAX_TOKENS)) for name, path in paths.items()}
    assert len({text for _, text in expected.values()}) > len(paths) // 2
    turn = asyncio.Semaphore(AT_A_TIME)

    async def ask(gateway: Gateway, name: str) -> tuple[int, str]:
        async with turn:
            return await complete(gateway, name)

    async with running_gateway(directory, registry(paths)) as gateway:
        answers = await asyncio.gather(*(ask(gateway, name) for name in paths))
    assert dict(zip(paths, answers, strict=True)) == expected


async def test_unlike_families_answer_as_their_models_do_alone(tmp_path: Path) -> None:
    await check_answers(tmp_path, (CASES[name] for name in UNLIKE))


@pytest.mark.slow
async def test_every_architecture_answers_as_its_model_does_alone(tmp_path: Path) -> None:
    """One checkpoint each; some two minutes of processor time, nearly all of it workers that start."""
    first: dict[str, Case] = {}
    for case in sorted(CASES.values(), key=lambda case: case.light):
        first.setdefault(case.architecture, case)
    await check_answers(tmp_path, (case for case in first.values() if case.id not in UNLIKE))


async def test_damaged_checkpoints_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    case = CASES["gpt-oss"]
    _, tensors = floats_of(case)
    name, key = "blk.1.attn_k.weight", "expert_used_count"
    shorter: CheckpointTensor = ("F32", np.ascontiguousarray(tensors[name][1][:-1], np.float32))
    without = replace(case, metadata={each: value for each, value in case.metadata.items() if each != key})
    paths = {kind: tmp_path / f"{kind}.gguf" for kind in ("renamed", "shorter", "keyless", "torn", "whole")}
    renamed = {f"{each}s" if each == name else each: value for each, value in tensors.items()}
    write_case(paths["renamed"], case, renamed, tokenizer=TOKENIZER)
    write_case(paths["shorter"], case, tensors | {name: shorter}, tokenizer=TOKENIZER)
    write_case(paths["keyless"], without, tensors, tokenizer=TOKENIZER)
    write_served(paths["whole"], case)
    paths["torn"].write_bytes(paths["whole"].read_bytes()[:-4096])
    async with running_gateway(tmp_path, registry(paths)) as gateway:
        told = {kind: await complete(gateway, kind) for kind in paths}
    assert told.pop("whole") == (200, alone(paths["whole"], MAX_TOKENS))
    assert {status for status, _ in told.values()} == {503}
    reasons = {kind: message.removeprefix(f"{paths[kind]}: ") for kind, (_, message) in told.items()}
    last = next(reversed(tensors))
    assert reasons["torn"].startswith(f"tensor '{last}'") and "past the end of the file" in reasons.pop("torn")
    assert reasons == {
        "renamed": f"tensor '{name}' is missing",
        "shorter": f"tensor '{name}' is [63, 64], the metadata makes it [64, 64]",
        "keyless": f"metadata key 'gpt-oss.{key}' is missing",
    }
