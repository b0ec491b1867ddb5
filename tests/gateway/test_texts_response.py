"""Answers of many texts over a real socket, whose workers are fakes: leases, clients that leave, errors, counts, large bodies."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from engines.wire import Admitted, EmbedRequest, Event, Failed, Scores, Vectors, WireError
from gateway.app import create_app
from gateway.errors import ModelTooLarge, ShuttingDown
from gateway.settings import ApiKey
from tests.gateway.helpers_app import KEY, client_of, make_app, make_catalog, make_settings
from tests.gateway.helpers_residency import BOUND_S, FakeResidency, failed, finished, refusing
from tests.gateway.helpers_server import post, serving

BODY = {"model": "embedder", "input": ["a", "b"]}


def vectors(first: int, count: int, dims: int = 2) -> Vectors:
    numbers = [float(first * dims + i) for i in range(count * dims)]
    return Vectors(
        request_id=1, first=first, dims=dims, data=struct.pack(f"<{len(numbers)}f", *numbers), tokens=(3,) * count
    )


def answering(*parts: Event) -> FakeResidency:
    return FakeResidency(Admitted(request_id=1, prompt_tokens=6), *parts, finished(prompt=6, completion=0))


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    """Samples of the model by name, and by what else labels them."""
    found = {}
    for family in (await client.get("/v1/metrics")).json().values():
        for sample in family["samples"]:
            labels = dict(sample["labels"])
            if labels.pop("model", None) == "embedder":
                found[":".join((sample["name"], *labels.values()))] = sample["value"]
    return found


async def test_answer_in_parts_is_put_together_and_counted() -> None:
    residency = answering(vectors(0, 1), vectors(1, 1))
    async with client_of(make_app(residency)) as client:
        answer = await client.post("/v1/embeddings", json={**BODY, "user": "me", "priority": "batch"})
        counted = await metrics(client)
    assert [(item["index"], item["embedding"]) for item in answer.json()["data"]] == [(0, [0.0, 1.0]), (1, [2.0, 3.0])]
    assert answer.headers["x-innkeeper-ignored"] == "user"
    (lease,) = residency.leases
    assert (lease.route, lease.priority, lease.ended, lease.released.is_set()) == (
        "/v1/embeddings",
        "batch",
        True,
        True,
    )
    assert lease.requests == [EmbedRequest(inputs=("a", "b"), priority="batch")]
    assert counted["innkeeper_inputs_total"] == 2
    assert counted["innkeeper_answers_total:ok"] == 1
    assert (counted["innkeeper_tokens_total:prompt"], counted["innkeeper_tokens_total:completion"]) == (6, 0)
    assert counted["innkeeper_queue_wait_seconds_count"] == 1
    assert "innkeeper_first_text_seconds_count" not in counted


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (vectors(0, 1),),
        (vectors(0, 3),),
        (vectors(1, 1), vectors(0, 1)),
        (vectors(0, 1), vectors(0, 1)),
        (Scores(request_id=1, first=0, raw=(1.0, 2.0), sigmoid=(0.7, 0.8), tokens=(1, 1)),),
    ],
    ids=["none", "too few", "too many", "out of order", "twice", "scores"],
)
async def test_vectors_that_do_not_fit_the_inputs_are_an_error(parts: tuple[Event, ...]) -> None:
    async with client_of(make_app(answering(*parts))) as client:
        answer = await client.post("/v1/embeddings", json=BODY)
        counted = await metrics(client)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert counted["innkeeper_answers_total:error"] == 1
    assert "innkeeper_inputs_total" not in counted


@pytest.mark.parametrize(
    ("events", "status", "code", "retry"),
    [
        ((failed("worker_died"),), 503, "worker_died", "false"),
        ((failed("context_length_exceeded"),), 400, "context_length_exceeded", None),
        ((vectors(0, 2), finished("cancelled")), 503, "model_unloaded", "false"),
        ((vectors(0, 2),), 503, "worker_died", "false"),
    ],
    ids=["died", "too long", "cancelled", "without end"],
)
async def test_failure_of_the_worker_is_a_status(
    events: tuple[Event, ...], status: int, code: str, retry: str | None
) -> None:
    residency = FakeResidency(*events)
    async with client_of(make_app(residency)) as client:
        answer = await client.post("/v1/embeddings", json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.headers.get("x-should-retry") == retry
    assert residency.leases[0].released.is_set()


async def test_refusal_of_the_residency_is_a_status() -> None:
    async with client_of(make_app(refusing(ModelTooLarge("too large")))) as client:
        answer = await client.post("/api/embed", json=BODY)
    assert (answer.status_code, answer.json()) == (507, {"error": "too large"})


def stuck(residency: FakeResidency) -> asyncio.Event:
    """The worker admits and then says nothing; the event says that it has."""
    begun = asyncio.Event()

    async def script(_request: Any) -> AsyncIterator[Event]:
        yield Admitted(request_id=1, prompt_tokens=6)
        begun.set()
        await asyncio.Event().wait()

    residency.script = script
    return begun


@pytest.mark.parametrize(
    ("path", "words"),
    [("/v1/embeddings", 1), ("/api/embed", 1), ("/v1/embeddings", 150_000)],  # the last has a body of many reads
)
async def test_client_that_leaves_ends_the_work_and_the_lease(path: str, words: int) -> None:
    residency = FakeResidency()
    begun = stuck(residency)
    app = make_app(residency)
    async with serving(app) as served, asyncio.timeout(BOUND_S):
        _, writer = await served.connect()
        writer.write(post(path, {**BODY, "input": ["a " * words, "b"]}))
        await begun.wait()
        writer.close()
        (lease,) = residency.leases
        await lease.cancelled.wait()
        await lease.released.wait()
        await app.state.services.live.wait_idle()
        async with httpx.AsyncClient(base_url=served.url, timeout=BOUND_S) as client:
            counted = await metrics(client)
    assert counted["innkeeper_answers_total:cancelled"] == 1
    assert "innkeeper_inputs_total" not in counted


async def test_key_with_as_many_under_way_as_it_may_is_429() -> None:
    residency = FakeResidency()
    begun = stuck(residency)
    app = make_app(residency, keys=[ApiKey(KEY, frozenset({"infer"}), concurrency=1)])
    headers = {"authorization": f"Bearer {KEY}"}
    async with client_of(app) as client, asyncio.timeout(BOUND_S):
        first = asyncio.create_task(client.post("/v1/embeddings", json=BODY, headers=headers))
        await begun.wait()
        refused = [
            await client.post(path, json=BODY, headers=headers)
            for path in ("/v1/embeddings", "/api/embed", "/api/embeddings", "/v1/rerank", "/v2/rerank", "/v1/score")
        ]
        app.state.services.live.end_all(ShuttingDown("the server is shutting down"))
        await first
    assert {answer.status_code for answer in refused} == {429}
    assert refused[0].json()["error"]["code"] == "rate_limit_exceeded"


async def test_shutdown_ends_the_work_with_its_error() -> None:
    residency = FakeResidency()
    begun = stuck(residency)
    app = make_app(residency)
    async with client_of(app) as client, asyncio.timeout(BOUND_S):
        asking = asyncio.create_task(client.post("/v1/embeddings", json=BODY))
        await begun.wait()
        app.state.services.live.end_all(ShuttingDown("the server is shutting down"))
        answer = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert residency.leases[0].cancelled.is_set() and residency.leases[0].released.is_set()


async def test_large_answer_is_whole_and_its_lease_is_back_before_a_slow_client_has_read_it() -> None:
    count, dims = 512, 256
    residency = answering(*(vectors(first, 64, dims) for first in range(0, count, 64)))
    app: Starlette = make_app(residency)
    async with serving(app) as served, asyncio.timeout(BOUND_S):
        reader, writer = await served.connect(receive_buffer=4096)
        writer.write(post("/v1/embeddings", {"model": "embedder", "input": ["x"] * count}, "connection: close"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert residency.leases[0].released.is_set()
        body = b""
        while chunk := await reader.read(1 << 16):
            body += chunk
        writer.close()
    assert f"content-length: {len(body)}".encode() in head.lower()
    data = httpx.Response(200, content=body).json()["data"]
    assert [item["index"] for item in data] == list(range(count))
    assert data[-1]["embedding"] == [float(number) for number in range((count - 1) * dims, count * dims)]


async def test_field_of_the_worker_is_told_by_the_name_that_the_request_has() -> None:
    residency = FakeResidency()

    async def script(_request: Any) -> AsyncIterator[Event]:
        yield Failed(request_id=1, error=WireError(code="invalid_request_error", message="m", param="documents"))

    residency.script = script
    registry = 'models: [{id: r, source: "sim:", simulate: {weights: 1MiB, task: rerank}}]'
    async with client_of(create_app(make_settings(), make_catalog(registry), residency)) as client:
        scored = await client.post("/v1/score", json={"model": "r", "text_1": "x", "text_2": "y"})
        ranked = await client.post("/rerank", json={"model": "r", "query": "x", "documents": ["y"]})
    assert (scored.json()["error"]["param"], ranked.json()["error"]["param"]) == ("text_2", "documents")
