"""Embedding models and rerankers are residents like all others: one budget, leases, plans, pins, unloads, a worker's death."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.blackbox.helpers_gateway import Gateway, bounded, running_gateway

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

GIB = 2**30
REGISTRY = """
workers: {spare: 0}
memory: {device: 16GiB, budget: 10GiB}
models:
  - {id: chat, source: "sim:", simulate: {weights: 6GiB}}
  - {id: emb, source: "sim:", simulate: {weights: 4GiB, task: embedding, load_s: 0.05}}
  - {id: paced, source: "sim:", simulate: {weights: 5GiB, task: embedding, tokens_per_s: 10}}
  - {id: rr, source: "sim:", simulate: {weights: 5GiB, task: rerank}}
  - {id: huge, source: "sim:", simulate: {weights: 11GiB, task: rerank}}
  - {id: dies, source: "sim:", simulate: {weights: 1MiB, task: embedding, abort_after_tokens: 1}}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path_factory.mktemp("gateway"), REGISTRY) as running:
        yield running


async def embed(gateway: Gateway, model: str, text: Any = "x") -> tuple[int, Any]:
    answer = await bounded(gateway.client.post("/v1/embeddings", json={"model": model, "input": text}))
    return answer.status_code, answer.json()


async def rerank(gateway: Gateway, model: str) -> tuple[int, Any]:
    body = {"model": model, "query": "x", "documents": ["y"]}
    answer = await bounded(gateway.client.post("/v1/rerank", json=body))
    return answer.status_code, answer.json()


async def states(gateway: Gateway) -> dict[str, str]:
    status = await gateway.quiet()
    assert sum(model["charged_bytes"] for model in status["models"]) <= status["budget"]["total_bytes"]
    return {model["id"]: model["state"] for model in status["models"]}


async def test_kinds_share_one_budget_and_make_room_for_each_other(gateway: Gateway) -> None:
    assert (await gateway.chat("chat")).status == 200
    assert (await embed(gateway, "emb"))[0] == 200
    loaded = await states(gateway)
    assert (loaded["chat"], loaded["emb"]) == ("loaded", "loaded")
    _, plan = await gateway.admin("GET", "/plan?model=rr")
    assert (plan["action"], plan["fits"], plan["evicts"]) == ("evict", True, ["chat"])
    assert (await rerank(gateway, "rr"))[0] == 200
    loaded = await states(gateway)
    assert (loaded["chat"], loaded["emb"], loaded["rr"]) == ("unloaded", "loaded", "loaded")
    shown = (await gateway.client.get("/api/ps")).json()["models"]
    assert [(model["name"], model["size"] >= 4 * GIB) for model in shown] == [("emb", True), ("rr", True)]


async def test_model_that_can_never_fit_is_507_and_nobody_goes(gateway: Gateway) -> None:
    assert (await embed(gateway, "emb"))[0] == 200
    status, body = await rerank(gateway, "huge")
    assert (status, body["error"]["code"]) == (507, "model_too_large")
    assert (await states(gateway))["emb"] == "loaded"


async def test_requests_for_a_cold_model_share_one_load(gateway: Gateway) -> None:
    assert (await gateway.admin("POST", "/models/emb/unload"))[0] == 200
    before = (await gateway.model("emb"))["loads"]
    answers = await asyncio.gather(*(embed(gateway, "emb", f"text {i}") for i in range(10)))
    assert [status for status, _ in answers] == [200] * 10
    assert (await gateway.model("emb"))["loads"] == before + 1


async def test_r1_request_under_way_is_not_evicted_for_another(gateway: Gateway) -> None:
    for name in ("emb", "paced"):
        assert (await gateway.admin("POST", f"/models/{name}/unload"))[0] == 200
    loads = (await gateway.steps("paced")).count("loaded")
    slow = asyncio.create_task(embed(gateway, "paced", "w " * 12))  # a second or so
    await gateway.transition("paced", "loaded", count=loads + 1)
    other = await gateway.chat("chat")
    steps = await gateway.steps("paced")
    assert (await slow)[0] == 200 and other.status == 200
    assert steps[-1] in ("unloading", "unloaded")


async def test_r6_client_that_leaves_while_its_model_loads_leaves_nothing(gateway: Gateway) -> None:
    await gateway.admin("POST", "/models/emb/unload")
    loads = (await gateway.steps("emb")).count("loading")
    asking = asyncio.create_task(embed(gateway, "emb"))
    await gateway.transition("emb", "loading", count=loads + 1)
    asking.cancel()
    status = await gateway.quiet()
    assert (status["leases"], status["queue"]) == ([], [])
    assert (await embed(gateway, "emb"))[0] == 200


async def test_pinned_embedding_model_stays(gateway: Gateway) -> None:
    assert (await embed(gateway, "emb"))[0] == 200
    assert (await gateway.admin("POST", "/models/emb/pin"))[0] == 200
    try:
        for _ in range(2):
            assert (await gateway.chat("chat")).status == 200
            assert (await rerank(gateway, "rr"))[0] == 200
        assert (await states(gateway))["emb"] == "loaded"
        assert (await gateway.admin("POST", "/models/emb/unload"))[0] == 409
    finally:
        await gateway.admin("POST", "/models/emb/unpin")


async def test_r34_workers_death_is_told_and_who_had_not_begun_is_served_by_the_next(gateway: Gateway) -> None:
    before = await admissions(gateway, "paced")
    begun = asyncio.create_task(embed(gateway, "paced", "w " * 600))  # a minute
    while await admissions(gateway, "paced") == before:
        pass  # each look is a round trip
    os.kill(await gateway.worker_pid("paced"), signal.SIGKILL)
    status, body = await bounded(begun)
    assert (status, body["error"]["code"]) == (503, "worker_died")
    # This one's worker ends by itself as soon as a second request comes, before it begins with it.
    assert [(await embed(gateway, "dies"))[0] for _ in range(2)] == [200, 200]
    assert (await gateway.model("dies"))["loads"] == 2


async def admissions(gateway: Gateway, model: str) -> float:
    """How many requests of this model a worker has begun with."""
    waits = (await gateway.client.get("/v1/metrics")).json()["innkeeper_queue_wait_seconds"]["samples"]
    return sum(float(s["value"]) for s in waits if s["name"].endswith("_count") and s["labels"]["model"] == model)
