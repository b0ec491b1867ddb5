"""Who waits, for how long and how it is seen, over real sockets with real workers and simulated models."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.helpers_app import chat_body
from tests.gateway.helpers_house import House, house
from tests.gateway.helpers_residency import BOUND_S

CHAT = "/v1/chat/completions"


def registry(*models: str, rest: str = "") -> str:
    lines = "\n".join(f"  - {{{model}}}" for model in models)
    return f"memory: {{budget: 10GiB, device: 16GiB}}\n{rest}\nmodels:\n{lines}\n"


def sim(name: str, simulate: str, keys: str = "") -> str:
    return f'id: {name}, source: "sim:", simulate: {{{simulate}}}{", " + keys if keys else ""}'


def metrics_of(text: str) -> dict[str, dict[str, float]]:
    """Name → the labels but the model's, joined → value, of model ``a``."""
    seen: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if labels.pop("model", None) == "a":
                seen.setdefault(sample.name, {})[" ".join(labels.values())] = sample.value
    return seen


async def until(holds: Callable[[], Awaitable[Any]]) -> Any:
    """What it answers once that is true; each round trip lets the workers go on."""
    async with asyncio.timeout(BOUND_S):
        while not (answer := await holds()):
            pass
    return answer


async def one(running: House, model: str = "a") -> dict[str, Any]:
    answer: dict[str, Any] = (await running.http.get(f"/admin/models/{model}")).json()
    return answer


def asking(running: House, **fields: Any) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(running.http.post(CHAT, json=chat_body(**fields)))


@asynccontextmanager
async def streaming(running: House, **fields: Any) -> AsyncIterator[AsyncIterator[str]]:
    """An answer under way; its lines."""
    async with running.http.stream("POST", CHAT, json=chat_body(stream=True, **fields)) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        await anext(lines)
        yield lines


async def test_full_queue_is_503_and_says_when_those_who_wait_will_have_been_served() -> None:
    slow = sim("a", "weights: 1GiB, tokens_per_s: 50", "concurrency: 1, queue_limit: 2")
    async with house(registry(slow)) as running:
        assert (await running.http.post(CHAT, json=chat_body(max_tokens=76))).status_code == 200  # in 1.5 s at least
        async with streaming(running):
            ended: list[str] = []

            async def ask(priority: str) -> int:
                answer = await asking(running, max_tokens=9, priority=priority)
                ended.append(priority)
                return answer.status_code

            waiting = [asyncio.create_task(ask(priority)) for priority in ("batch", "interactive")]

            async def both_wait() -> bool:
                return len((await running.status())["leases"]) == 3

            await until(both_wait)
            answer = await running.http.post(CHAT, json=chat_body(max_tokens=1, stream=True))
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "server_overloaded")
            assert "2 requests wait for model 'a'" in answer.json()["error"]["message"]
            assert 3 <= int(answer.headers["retry-after"]) <= 60 and "x-should-retry" not in answer.headers
        assert await asyncio.gather(*waiting) == [200, 200]
        assert ended == ["interactive", "batch"]
        assert (await running.http.post(CHAT, json=chat_body(max_tokens=1))).status_code == 200


async def test_interactive_request_loads_its_model_before_that_of_a_batch_request() -> None:
    models = (
        sim("a", "weights: 8GiB, tokens_per_s: 50"),
        sim("b", "weights: 8GiB", "priority: batch"),
        sim("c", "weights: 8GiB"),
        sim("d", "weights: 8GiB"),
    )

    async with house(registry(*models)) as running:
        async with streaming(running):
            waiting = []
            for count, fields in enumerate(
                [{"model": "b"}, {"model": "c"}, {"model": "d", "priority": "interactive"}], start=1
            ):
                waiting.append(asking(running, max_tokens=1, **fields))

                async def queued(count: int = count) -> bool:
                    return len((await running.http.get("/admin/queue")).json()["queue"]) == count

                await until(queued)
            queue = (await running.http.get("/admin/queue")).json()["queue"]
            assert [entry["model"] for entry in queue] == ["d", "c", "b"]
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200] * 3


ROWS = "weights: 1GiB, kv_per_token: 8KiB, tokens_per_s: 50"
OF_WORKERS = re.compile(
    "innkeeper_(queue_limit|capacity|decode|rows|cohorts|frontier|prefill|tokens_per|memory_|kv_|preempt|sheds"
    "|worker_(queue|first|inter))"
)


async def test_capacity_and_scheduling_are_shown_while_a_model_is_loaded_and_not_after() -> None:
    shared = sim("a", f"{ROWS}, content: one", "concurrency: 4, context: 4096, kv_grant: 64MiB")
    other = sim("b", f"{ROWS}, content: one", "concurrency: 4, context: 4096, kv_grant: 64MiB, queue_limit: 3")
    async with house(registry(shared, other)) as running:

        async def seen() -> dict[str, dict[str, float]]:
            return metrics_of((await running.http.get("/metrics")).text)

        async def of_workers() -> set[str]:
            return {name for name in await seen() if OF_WORKERS.match(name)}

        before = await one(running)
        assert (before["capacity"]["estimate"], before["scheduling"]) == (True, None) and await of_workers() == set()
        async with streaming(running, max_tokens=4000):

            async def decodes() -> dict[str, Any] | None:
                told = (await one(running))["scheduling"]
                return told if told and told["decoding"] == 1 else None

            told = await until(decodes)
            assert (told["waiting"], told["deferred"], told["band"]) == (0, 0, "green")
            assert told["queue_wait"]["count"] == 1
            model, same = await one(running), await one(running, "b")
            metrics = await seen()
            as_json = (await running.http.get("/v1/metrics")).json()
        capacity = model["capacity"]
        assert (capacity["estimate"], capacity["width"], capacity["queue_limit"]) == (False, told["width"], 16)
        assert [row["rows"] for row in capacity["rows"]] == [1, 2, 4, 8, 16, 32]
        assert same["capacity"] == capacity | {"queue_limit": 3} and same["shares"] == "a"
        assert metrics["innkeeper_rows"] == {"decoding": 1, "prefilling": 0, "waiting": 0, "deferred": 0}
        depths = {str(row["rows"]): row["tokens"] for row in capacity["rows"]}
        assert metrics["innkeeper_capacity_tokens"] == depths and metrics["innkeeper_queue_limit"] == {"": 16}
        assert metrics["innkeeper_queue_wait_seconds_count"] == {"": 1}
        buckets = list(metrics["innkeeper_worker_inter_token_seconds_bucket"].values())
        assert buckets == sorted(buckets) and buckets[-1] == metrics["innkeeper_worker_inter_token_seconds_count"][""]
        assert {sample["labels"].get("model") for sample in as_json["innkeeper_rows"]["samples"]} == {"a"}

        async def idle() -> bool:
            told = (await one(running))["scheduling"]
            return bool(told["decoding"] == 0 and told["inter_token"]["count"] > 0)

        await until(idle)
        assert (await running.http.post("/admin/models/a/unload")).status_code == 200
        after = await one(running)
        assert (after["capacity"]["estimate"], after["scheduling"]) == (True, None) and await of_workers() == set()
        assert after["capacity"]["width"] == capacity["width"]  # as was measured
        assert (await seen())["innkeeper_queue_wait_seconds_count"] == {"": 1}


async def test_capacity_follows_the_grant() -> None:
    growing = sim("a", "weights: 1GiB, kv_per_token: 8KiB, tokens_per_s: 50", "context: 4096, kv_grant: 8MiB")

    async with house(registry(growing)) as running:

        async def deepest() -> int:
            tokens: int = (await one(running))["capacity"]["rows"][0]["tokens"]
            return tokens

        async with streaming(running, max_tokens=2000):  # 8 MiB hold 1024

            async def grown() -> bool:
                return await deepest() >= 2000

            await until(grown)

        async def back() -> bool:
            return await deepest() == 1024

        await until(back)
        assert (await one(running))["capacity"]["grant_bytes"] == 8 << 20
