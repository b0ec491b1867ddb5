"""From a client's socket to a real worker process and back; the models are simulated."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.gateway.helpers_app import chat_body
from tests.gateway.helpers_house import House, house
from tests.gateway.helpers_residency import BOUND_S

CHAT = "/v1/chat/completions"
MESSAGES: list[Any] = [{"role": "user", "content": "three words here"}]


def events(text: str) -> list[Any]:
    """The JSON of a stream's events; the end marker as it is."""
    data = [line[6:] for line in text.split("\n\n") if line.startswith("data: ")]
    return [event if event == "[DONE]" else json.loads(event) for event in data]


def text_of(stream: str) -> str:
    """The text of a stream, of either text protocol."""
    choices = [choice for event in events(stream) if event != "[DONE]" for choice in event["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


async def outcome(running: House, model: str) -> dict[str, float]:
    """How many answers of the model ended how."""
    metrics = (await running.http.get("/v1/metrics")).json()
    samples = metrics["innkeeper_answers"]["samples"]
    return {
        sample["labels"]["outcome"]: sample["value"]
        for sample in samples
        if sample["labels"].get("model") == model and sample["name"].endswith("_total")
    }


async def test_official_client_chats_completes_and_streams() -> None:
    async with (
        house() as running,
        openai.AsyncOpenAI(base_url=f"{running.served.url}/v1", api_key="x", max_retries=0) as client,
    ):
        chat = await client.chat.completions.create(model="gpt-4o", messages=MESSAGES, max_completion_tokens=5)
        assert chat.choices[0].message.content == "w0 w1 w2 w3 w4"
        assert chat.choices[0].finish_reason == "length"
        assert chat.usage is not None
        assert chat.usage.completion_tokens == 5
        stream = await client.chat.completions.create(
            model="a", messages=MESSAGES, stream=True, max_tokens=4, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "w0 w1 w2 w3"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 4
        two = await client.completions.create(model="a", prompt=["one", "two"], max_tokens=2)
        assert [choice.text for choice in two.choices] == ["w0 w1", "w0 w1"]
        status = await running.status()
        assert (status["models"][0]["id"], status["models"][0]["state"]) == ("a", "loaded")
        assert status["leases"] == []
        assert status["workers"][0]["model"] == "a"
        listed = (await running.http.get("/v1/models")).json()["data"]
        assert [model["state"] for model in listed][:2] == ["loaded", "unloaded"]


def test_official_client_without_asyncio() -> None:
    async def serve_and_ask() -> str | None:
        async with house() as running:

            def ask() -> str | None:
                with openai.OpenAI(base_url=f"{running.served.url}/v1", api_key="x", max_retries=0) as client:
                    answer = client.chat.completions.create(model="a", messages=MESSAGES, max_tokens=1)
                    return answer.choices[0].message.content

            return await asyncio.to_thread(ask)

    assert asyncio.run(serve_and_ask()) == "w0"


@pytest.mark.parametrize("route", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("stream", [True, False])
async def test_stop_over_tokens_leaks_nothing(route: str, stream: bool) -> None:
    body: dict[str, Any] = {"model": "a", "stream": stream, "stop": ["2 w3"], "max_tokens": 10}
    body |= {"messages": MESSAGES} if route == CHAT else {"prompt": "x"}
    async with house() as running:
        answer = await running.http.post(route, json=body)
    if stream:
        choices = [event["choices"][0] for event in events(answer.text) if event != "[DONE]"]
        text = text_of(answer.text)
    else:
        choices = answer.json()["choices"]
        text = choices[0]["message"]["content"] if route == CHAT else choices[0]["text"]
    assert text == "w0 w1 w"
    assert choices[-1]["finish_reason"] == "stop"


async def test_usage_chunk_only_when_asked_for() -> None:
    async with house() as running:
        with_usage = await running.http.post(
            CHAT, json=chat_body(stream=True, max_tokens=2, stream_options={"include_usage": True})
        )
        without = await running.http.post(CHAT, json=chat_body(stream=True, max_tokens=2))
    *_, usage, end = events(with_usage.text)
    assert (usage["choices"], usage["usage"]["completion_tokens"], end) == ([], 2, "[DONE]")
    assert all("usage" not in event for event in events(without.text))


async def test_keepalives_through_queue_load_and_prefill() -> None:
    registry = """
memory: {budget: 10GiB, device: 16GiB}
models:
  - {id: busy, source: "sim:", simulate: {weights: 8GiB, tokens_per_s: 20}}
  - {id: cold, source: "sim:", simulate: {weights: 8GiB, load_s: 0.8, ttft_s: 0.8}}
"""
    seen: list[str] = []  # the states of the cold model at a comment
    async with (
        house(registry, keepalive_s=0.05) as running,
        running.http.stream("POST", CHAT, json=chat_body(model="busy", stream=True)) as busy,
    ):
        lines = busy.aiter_lines()
        while not (await anext(lines)).startswith("data: "):
            pass  # from then on it has the room
        async with running.http.stream("POST", CHAT, json=chat_body(model="cold", stream=True, max_tokens=1)) as cold:
            async for line in cold.aiter_lines():
                if line.startswith("data: "):
                    break
                if line == ": keep-alive":
                    seen.append((await running.status())["models"][1]["state"])
                    await busy.aclose()
    assert cold.headers["x-accel-buffering"] == "no"
    assert {"unloaded", "loading", "loaded"} <= set(seen)


async def test_unknown_and_missing_model() -> None:
    async with house() as running:
        unknown = await running.http.post(CHAT, json=chat_body(model="nobody"))
        missing = await running.http.post(CHAT, json={"messages": MESSAGES})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")


@pytest.mark.parametrize("stream", [True, False])
async def test_client_leaving_cancels_in_the_worker(stream: bool) -> None:
    async with house() as running:
        model = "slow" if stream else "quiet"
        asking = asyncio.create_task(running.http.post(CHAT, json=chat_body(model=model, stream=stream)))
        async with asyncio.timeout(BOUND_S):
            while not (await running.status())["leases"]:
                pass
        asking.cancel()
        async with asyncio.timeout(BOUND_S):
            await running.until_no_lease()
        assert await outcome(running, model) == {"cancelled": 1.0}
        after = await running.http.post(CHAT, json=chat_body(model="a", max_tokens=1))
        assert after.status_code == 200


async def test_worker_dying_mid_stream_is_event_and_end_marker() -> None:
    async with house() as running:
        answer = await running.http.post(CHAT, json=chat_body(model="dies", stream=True, max_tokens=10))
        healthy = await running.http.post(CHAT, json=chat_body(model="a", max_tokens=1))
    *_, error, end = events(answer.text)
    assert answer.status_code == 200
    assert (error["error"]["code"], end) == ("worker_died", "[DONE]")
    assert healthy.status_code == 200


async def test_worker_dying_unstreamed_is_503_not_to_be_retried() -> None:
    async with house() as running:
        answer = await running.http.post(CHAT, json=chat_body(model="dies", max_tokens=10))
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "worker_died")
    assert answer.headers["x-should-retry"] == "false"


async def test_refusals_have_their_status_streamed_or_not() -> None:
    async with house() as running:
        for stream in (True, False):
            huge = await running.http.post(CHAT, json=chat_body(model="huge", stream=stream))
            fails = await running.http.post(CHAT, json=chat_body(model="fails", stream=stream))
            assert (huge.status_code, huge.json()["error"]["code"]) == (507, "model_too_large")
            assert (fails.status_code, fails.json()["error"]["code"]) == (503, "model_load_failed")
            assert "the file is torn" in fails.json()["error"]["message"]
            assert "retry-after" in fails.headers


async def test_many_at_once_all_get_their_own_answer() -> None:
    async with house() as running:
        asks = [running.http.post(CHAT, json=chat_body(max_tokens=i + 1, stream=i % 2 == 0)) for i in range(20)]
        answers = await asyncio.gather(*asks)
        for i, answer in enumerate(answers):
            if i % 2:
                assert answer.json()["usage"]["completion_tokens"] == i + 1
            else:
                assert text_of(answer.text) == " ".join(f"w{n}" for n in range(i + 1))
        status = await running.status()
    assert status["leases"] == []
    assert status["models"][0]["loads"] == 1


async def test_clients_leaving_at_every_moment_lose_no_lease() -> None:
    async with house() as running:
        asks = []
        for i in range(40):
            body = chat_body(model=("a", "slow")[i % 2], stream=i % 4 < 2, max_tokens=1 + i)
            asks.append(asyncio.create_task(running.http.post(CHAT, json=body)))
            await asyncio.sleep(0.003)  # the moments differ: queued, loading, granted, prefilling, streaming
            asks[i * 7 % (i + 1)].cancel()
        async with asyncio.timeout(3 * BOUND_S):
            await asyncio.wait(asks)
            await running.until_no_lease()
        running.residency._manager.check_integrity()
        status = await running.status()
        assert sum(model["leases"] + model["waiting"] for model in status["models"]) == 0
        ended = [await outcome(running, model) for model in ("a", "slow")]
        assert all(set(outcomes) <= {"ok", "cancelled"} for outcomes in ended)
        after = await running.http.post(CHAT, json=chat_body(model="slow", max_tokens=1))
        assert after.status_code == 200
