"""Ollama's routes as its official client sees them, over a real socket; workers are fakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import ollama
import pytest

from engines.wire import Admitted, Event, ReasoningDelta, TextRequest, ToolCallDelta, ToolCallStarted
from gateway.app import create_app
from gateway.errors import ModelTooLarge
from tests.gateway.helpers_app import client_of, make_app, make_catalog, make_settings
from tests.gateway.helpers_residency import FakeResidency, delta, failed, finished, refusing
from tests.gateway.helpers_server import serving

MESSAGES = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def client_for(residency: FakeResidency, **server: Any) -> AsyncIterator[ollama.AsyncClient]:
    async with (
        serving(make_app(residency, **server)) as served,
        ollama.AsyncClient(host=served.url, trust_env=False) as client,
    ):
        yield client


def talking() -> FakeResidency:
    admitted = Admitted(request_id=1, prompt_tokens=3)
    return FakeResidency(admitted, delta("Hel"), delta("lo 🦊"), finished("stop", prompt=3, completion=2))


async def test_chat_whole() -> None:
    async with client_for(talking()) as client:
        answer = await client.chat(model="gpt-4o:latest", messages=MESSAGES)
    assert (answer.model, answer.message.role, answer.message.content) == ("a", "assistant", "Hello 🦊")
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert (answer.prompt_eval_count, answer.eval_count) == (3, 2)
    spans = [answer.load_duration, answer.prompt_eval_duration, answer.eval_duration]
    assert all(span is not None and span >= 0 for span in spans)
    assert sum(span or 0 for span in spans) <= (answer.total_duration or 0)


async def test_chat_streamed() -> None:
    async with client_for(talking()) as client:
        parts = [part async for part in await client.chat(model="a", messages=MESSAGES, stream=True)]
    assert "".join(part.message.content or "" for part in parts) == "Hello 🦊"
    assert [part.done for part in parts] == [False, False, True]


async def test_generate_whole_and_streamed() -> None:
    async with client_for(talking()) as client:
        whole = await client.generate(model="a", prompt="hello", system="Be brief.")
        parts = [part async for part in await client.generate(model="a", prompt="hello", stream=True)]
    assert whole.response == "".join(part.response or "" for part in parts) == "Hello 🦊"


async def test_streams_where_the_body_says_nothing() -> None:
    async with client_of(make_app(talking())) as client:
        answer = await client.post("/api/generate", json={"model": "a", "prompt": "x", "options": {"num_gpu": 1}})
        loaded = await client.post("/api/generate", json={"model": "a", "options": {"num_gpu": 1}})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["x-innkeeper-ignored"] == loaded.headers["x-innkeeper-ignored"] == "options.num_gpu"
    assert len(answer.text.splitlines()) == 3


async def test_thinking_and_calls_reach_the_client() -> None:
    residency = FakeResidency(
        ReasoningDelta(request_id=1, text="Hm"),
        ToolCallStarted(request_id=1, index=0, id="c1", name="f"),
        ToolCallDelta(request_id=1, index=0, arguments='{"x": [1]}'),
        finished("tool_calls"),
    )

    def f(x: list[int]) -> int:
        """Adds up.

        Args:
            x: numbers
        """
        return sum(x)

    async with client_for(residency) as client:
        answer = await client.chat(model="a", messages=MESSAGES, tools=[f], think=True)
    assert (answer.message.thinking, answer.done_reason) == ("Hm", "stop")
    (call,) = answer.message.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("f", {"x": [1]})
    (request,) = residency.leases[0].requests
    assert request.tools is not None and request.reasoning.enabled is True
    (tool,) = request.tools.tools
    assert (tool.name, tool.description) == ("f", "Adds up.")
    assert tool.parameters is not None and tool.parameters["required"] == ["x"]


@pytest.mark.parametrize("route", ["chat", "generate"])
async def test_nothing_asked_loads_and_with_keep_alive_of_zero_unloads(route: str) -> None:
    residency = talking()
    async with client_for(residency) as client:
        ask = getattr(client, route)
        loaded = await ask(model="a", keep_alive="5m")
        assert [lease.requests for lease in residency.leases] == [[]] and residency.held == 0
        unloaded = await ask(model="a", keep_alive=0)
        streamed = [part async for part in await ask(model="a", stream=True)]
    assert (loaded.done, loaded.done_reason, unloaded.done_reason) == (True, "load", "unload")
    assert [part.done_reason for part in streamed] == ["load"]
    assert residency.asked == [("keep_alive", "a", "300"), ("keep_alive", "a", "0")]
    assert len(residency.leases) == 2  # letting go takes none


async def test_priority_reaches_the_queue_also_where_nothing_is_asked() -> None:
    residency = FakeResidency(delta("hello"), finished())
    async with client_of(make_app(residency)) as client:
        for body in ({"prompt": "hi", "priority": "batch"}, {"priority": "interactive"}, {}):
            assert (await client.post("/api/generate", json={"model": "a", "stream": False, **body})).is_success
    assert [lease.priority for lease in residency.leases] == ["batch", "interactive", "normal"]


async def test_keep_alive_is_told_while_the_lease_is_held() -> None:
    residency = talking()
    held: list[int] = []
    residency.keep_alive = lambda model, seconds: held.append(residency.held)  # type: ignore[method-assign]
    async with client_for(residency) as client:
        await client.chat(model="a", messages=MESSAGES, keep_alive=-1)
        await client.chat(model="a", messages=MESSAGES)
    assert held == [1]


async def test_load_that_is_refused_has_its_status() -> None:
    async with client_for(refusing(ModelTooLarge("too large"))) as client:
        with pytest.raises(ollama.ResponseError, match="too large") as refusal:
            await client.generate(model="a")
    assert refusal.value.status_code == 507


async def test_error_within_a_stream_is_raised_by_the_client() -> None:
    residency = FakeResidency()
    begun = asyncio.Event()

    async def script(_request: TextRequest) -> AsyncIterator[Event]:
        yield delta("Hel")
        await begun.wait()
        yield failed("worker_died", "signal 9")

    residency.script = script
    async with client_for(residency) as client:
        with pytest.raises(ollama.ResponseError, match="signal 9"):
            async for _part in await client.chat(model="a", messages=MESSAGES, stream=True):
                begun.set()


async def test_client_reads_past_keep_alives() -> None:
    residency = FakeResidency()
    quiet = asyncio.Event()

    async def script(_request: TextRequest) -> AsyncIterator[Event]:
        yield delta("Hel")
        await quiet.wait()
        yield finished()

    residency.script = script
    async with serving(make_app(residency, keepalive_s=0.01)) as served:
        body = b'{"model": "a", "messages": [{"role": "user", "content": "x"}]}'
        head = b"POST /api/chat HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n"
        reader, writer = await served.connect()
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"\n1\r\n \r\n")  # a chunk that is a space
        quiet.set()
        rest = await reader.read()
        writer.close()
    assert b'"done":true' in rest
    async with client_for(residency, keepalive_s=0.01) as client:
        quiet.clear()
        asyncio.get_running_loop().call_later(0.1, quiet.set)
        parts = [part async for part in await client.chat(model="a", messages=MESSAGES, stream=True)]
    assert [part.message.content for part in parts] == ["Hel", ""]


async def test_errors_have_the_statuses_clients_know() -> None:
    async with client_for(talking()) as client:
        for model, status, words in (("nobody", 404, "nobody"), ("embedder", 400, "suitable: a, b")):
            with pytest.raises(ollama.ResponseError, match=words) as refusal:
                await client.chat(model=model, messages=MESSAGES)
            assert refusal.value.status_code == status
        with pytest.raises(ollama.ResponseError, match=r"options\.mirostat") as field:
            await client.generate(model="a", prompt="x", options={"mirostat": 2})
        assert field.value.status_code == 400
        with pytest.raises(ollama.ResponseError, match="images"):
            await client.generate(model="a", prompt="x", images=[b"png"])


async def test_num_ctx_above_the_models_context_is_refused() -> None:
    registry = 'models: [{id: a, source: "sim:", context: 64, simulate: {weights: 1MiB}}]'
    residency = talking()
    async with client_of(create_app(make_settings(), make_catalog(registry), residency)) as client:
        for num_ctx, status in ((64, 200), (65, 400)):
            body = {"model": "a", "prompt": "x", "options": {"num_ctx": num_ctx}}
            assert (await client.post("/api/generate", json=body)).status_code == status
            loads = await client.post("/api/generate", json={**body, "prompt": ""})
            assert loads.status_code == status
    assert len(residency.leases) == 2


async def test_tag_is_left_out_unless_the_registry_has_it() -> None:
    registry = (
        "models:\n"
        + '  - {id: a, source: "sim:", simulate: {weights: 1MiB}}\n'
        + '  - {id: "b:latest", source: "sim:", simulate: {weights: 1MiB}}\n'
    )
    async with client_of(create_app(make_settings(), make_catalog(registry), talking())) as client:
        for name, status in (("a:latest", 200), ("b:latest", 200), ("b", 404), ("a:7b", 404), ("c:latest", 404)):
            assert (await client.post("/api/show", json={"model": name})).status_code == status
        missing = await client.post("/api/show", json={"model": "c:latest"})
    assert "'c'" in missing.json()["error"]


async def test_models_of_the_client() -> None:
    residency = talking()
    row = SimpleNamespace(id="b", state="loaded", charged_bytes=9, shares=None, expires_s=None)
    residency.snapshot = SimpleNamespace(models=(row,))
    async with client_for(residency) as client:
        listed, running, shown = await client.list(), await client.ps(), await client.show("gpt-4o")
    assert [model.model for model in listed.models] == ["a", "b", "embedder", "broken"]
    assert [(model.name, model.size) for model in running.models] == [("b", 9)]
    assert shown.capabilities == ["completion", "tools", "thinking", "insert"]


async def test_version_is_one_that_clients_take() -> None:
    async with client_of(make_app()) as client:
        answer = (await client.get("/api/version")).json()
        head = await client.head("/api/version")
    assert tuple(map(int, answer["version"].split("."))) >= (0, 6, 4)  # what editors ask for at least
    assert answer["innkeeper"] and head.status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/pull"),
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/blobs/sha256:00"),
    ],
)
async def test_what_would_change_models_names_the_registry(method: str, path: str) -> None:
    async with client_of(make_app()) as client:
        answer = await client.request(method, path, json={"model": "llama3.2"})
    assert (answer.status_code, answer.headers["x-should-retry"]) == (501, "false")
    for words in ("registry.yaml", "innkeeper config check", "innkeeper reload"):
        assert words in answer.json()["error"]


async def test_shutting_down_is_503() -> None:
    residency = talking()
    residency.is_shutting_down = True
    async with client_of(make_app(residency)) as client:
        for body in ({"model": "a", "prompt": "x"}, {"model": "a"}):
            assert (await client.post("/api/generate", json=body)).status_code == 503
