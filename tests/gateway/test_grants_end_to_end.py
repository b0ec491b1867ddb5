"""KV grants over HTTP: what a client is told, and what an operator sees. Real workers, simulated models."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.helpers_app import chat_body
from tests.gateway.helpers_house import House, house
from tests.gateway.helpers_residency import BOUND_S

CHAT = "/v1/chat/completions"
GIB = 1024**3
REGISTRY = """
memory: {budget: 10GiB, device: 16GiB}
models:
  - {id: a, source: "sim:", kv_grant: 1GiB, simulate: {weights: 4GiB, kv_per_token: 1MiB}}
  - {id: b, source: "sim:", kv_grant: 1GiB, simulate: {weights: 3GiB, kv_per_token: 1MiB, tokens_per_s: 100}}
"""


async def charged(running: House, name: str) -> int:
    model: dict[str, Any] = next(entry for entry in (await running.status())["models"] if entry["id"] == name)
    return int(model["charged_bytes"])


@pytest.mark.parametrize("stream", [False, True])
async def test_request_that_no_grant_could_hold_is_a_400_with_both_numbers(stream: bool) -> None:
    async with house(REGISTRY) as running:
        answer = await running.http.post(CHAT, json=chat_body(model="a", max_tokens=7000, stream=stream))
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "tokens of KV cache" in error["message"] and "holds 6144" in error["message"]


async def test_request_beyond_the_grant_is_served_by_growth_and_waits_for_it_where_it_must() -> None:
    async with house(REGISTRY) as running, asyncio.timeout(BOUND_S):
        answer = await running.http.post(CHAT, json=chat_body(model="a", max_tokens=3000))
        assert answer.json()["usage"]["completion_tokens"] == 3000
        await running.until_no_lease()
        while await charged(running, "a") != 5 * GIB:
            pass  # the grant has gone back when the worker has reported
        async with running.http.stream("POST", CHAT, json=chat_body(model="b", max_tokens=900, stream=True)) as other:
            await anext(other.aiter_bytes())
            large = asyncio.create_task(running.http.post(CHAT, json=chat_body(model="a", max_tokens=3000)))
            small = await running.http.post(CHAT, json=chat_body(model="a", max_tokens=3))
            assert small.json()["usage"]["completion_tokens"] == 3
            assert not large.done()
        assert (await large).json()["usage"]["completion_tokens"] == 3000
