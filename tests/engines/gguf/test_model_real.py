"""The two real checkpoints: answers against stock mlx-lm on the dequantised weights, memory, building time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import GenerationBatch, PromptProcessingBatch
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf.model import build_model
from engines.gguf.tokenizer import GgufTokenizer
from engines.header import read_header
from tests.engines.gguf.helpers_stock import stock_smollm2

pytestmark = pytest.mark.slow

ANSWER = 8  # tokens
TIE = 1e-3  # logits so close may be ordered either way by sums in another order
PROMPTS = (
    "The capital of France is",
    "Once upon a time, there was",
    "def fibonacci(n):",
    "The opposite of hot is",
    "2 + 2 =",
    "Water boils at a temperature of",
    "The largest planet is",
    "My favourite colour is",
    "Roses are red, violets are",
    "To be, or not to be,",
)


def test_smollm2_answers_as_stock_does(smollm2_path: Path) -> None:
    """Greedy tokens of ten prompts, decoded as one batch, are those that the stock class prefers after each other."""
    header = read_header(smollm2_path)
    tokenizer = GgufTokenizer.from_metadata(header.metadata)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS]
    answers = greedy_answers(build_model(header).model, prompts)
    stock = stock_smollm2(header)
    for text, prompt, answer in zip(PROMPTS, prompts, answers, strict=True):
        logits = np.array(stock(mx.array([prompt + answer[:-1]]))[0, len(prompt) - 1 :])
        for position, token in enumerate(answer):
            gap = logits[position].max() - logits[position, token]
            if gap != 0:
                assert gap < TIE, f"{text!r}: token {position} of the answer is {gap} below stock's choice"
                break  # a tie went the other way: from here on the two answers are of different texts


def greedy_answers(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    batch = GenerationBatch.empty(model, lambda logits: mx.argmax(logits, axis=-1))
    for row, prompt in enumerate(prompts):
        batch.extend(PromptProcessingBatch(model, [row], [make_prompt_cache(model)]).generate([prompt]))
    answers: list[list[int]] = [[] for _ in prompts]
    for _ in range(ANSWER):
        for response in batch.next():
            answers[response.uid].append(response.token)
    return answers


def test_gemma_continues_sensibly(gemma_path: Path) -> None:
    header = read_header(gemma_path)
    tokenizer = GgufTokenizer.from_metadata(header.metadata)
    model = build_model(header).model
    (answer,) = greedy_answers(model, [tokenizer.encode("Once upon a time, there was a little")])
    assert tokenizer.decode(answer) == " girl named Lily. She was a very"


@pytest.mark.parametrize("model", ["smollm2_path", "gemma_path"])
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_resident_bytes_are_those_of_the_file(model: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    run = subprocess.run(
        [sys.executable, "-m", "tests.engines.gguf.helpers_resident", str(path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    held = json.loads(run.stdout)
    file_bytes = path.stat().st_size
    for moment in ("built", "used"):
        assert held[moment] - held["empty"] < 1.15 * file_bytes, held


@pytest.mark.parametrize("model", ["smollm2_path", "gemma_path"])
def test_building_takes_no_longer_than_reading(model: str, request: pytest.FixtureRequest) -> None:
    header = read_header(request.getfixturevalue(model))
    start = time.process_time()  # of this process: others may have the cores
    build_model(header)
    assert time.process_time() - start < 2.0
