"""OpenAI's routes as its official client sees them, over a real socket; workers are fakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from engines.wire import (
    ChatPrompt,
    Event,
    ReasoningDelta,
    TextRequest,
    Tool,
    ToolCallDelta,
    ToolCallStarted,
    ToolUse,
)
from gateway.app import create_app
from gateway.errors import ModelTooLarge, ServerOverloaded
from tests.gateway.helpers_app import chat_body, client_of, make_app, make_catalog, make_settings
from tests.gateway.helpers_residency import FakeResidency, delta, failed, finished, refusing
from tests.gateway.helpers_server import serving

MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def client_for(residency: FakeResidency, *, max_retries: int = 0) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serving(make_app(residency)) as served,
        openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none needed", max_retries=max_retries) as client,
    ):
        yield client


def talking() -> FakeResidency:
    return FakeResidency(delta("Hel"), delta("lo 🦊"), finished("stop", prompt=3, completion=2))


async def test_chat_whole() -> None:
    async with client_for(talking()) as client:
        answer = await client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello 🦊"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "a"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 2, 5)


@pytest.mark.parametrize("include_usage", [True, False])
async def test_chat_streamed(include_usage: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if include_usage else {}
    async with client_for(talking()) as client:
        stream = await client.chat.completions.create(model="a", messages=MESSAGES, stream=True, **options)
        chunks = [chunk async for chunk in stream]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == "Hello 🦊"
    assert [choice.finish_reason for choice in choices[-2:]] == [None, "stop"]
    usages = [chunk.usage for chunk in chunks if not chunk.choices]
    assert [usage.total_tokens for usage in usages if usage] == ([5] if include_usage else [])
    assert len({chunk.id for chunk in chunks}) == 1


async def test_chat_request_reaches_the_worker() -> None:
    residency = talking()
    async with client_for(residency) as client:
        await client.chat.completions.create(
            model="a", messages=MESSAGES, temperature=0, stop="END", seed=7, max_completion_tokens=5, user="me"
        )
    (request,) = residency.leases[0].requests
    assert isinstance(request.prompt, ChatPrompt)
    assert (request.sampling.temperature, request.sampling.seed) == (0, 7)
    assert (request.stop, request.max_tokens) == (("END",), 5)


def calling() -> FakeResidency:
    return FakeResidency(
        ReasoningDelta(request_id=1, text="Hm.", tokens=(1,)),
        ToolCallStarted(request_id=1, index=0, id="call_a", name="weather", tokens=(2,)),
        ToolCallDelta(request_id=1, index=0, arguments='{"city"', tokens=(3,)),
        ToolCallDelta(request_id=1, index=0, arguments=': "Oslo"}', tokens=(4,)),
        ToolCallStarted(request_id=1, index=1, id="call_b", name="clock", tokens=(5,)),
        ToolCallDelta(request_id=1, index=1, arguments="{}", tokens=(6,)),
        finished("tool_calls", completion=6),
    )


TOOLS: list[Any] = [{"type": "function", "function": {"name": name}} for name in ("weather", "clock")]
CALLS = [("call_a", "weather", '{"city": "Oslo"}'), ("call_b", "clock", "{}")]


@pytest.mark.parametrize("n", [1, 2])
async def test_chat_calls_tools(n: int) -> None:
    async with client_for(calling()) as client:
        answer = await client.chat.completions.create(model="a", messages=MESSAGES, tools=TOOLS, n=n)
    for choice in answer.choices:
        message: Any = choice.message
        assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls] == CALLS
        assert (message.content, message.reasoning_content, choice.finish_reason) == (None, "Hm.", "tool_calls")
    assert len(answer.choices) == n


async def test_chat_calls_tools_streamed_and_the_helper_puts_them_together() -> None:
    residency = calling()
    async with (
        client_for(residency) as client,
        client.chat.completions.stream(model="a", messages=MESSAGES, tools=TOOLS) as stream,
    ):
        final = await stream.get_final_completion()
    message: Any = final.choices[0].message
    assert [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls] == CALLS
    assert (message.content, message.reasoning_content) == (None, "Hm.")
    (request,) = residency.leases[0].requests
    assert request.tools == ToolUse(tools=(Tool(name="weather"), Tool(name="clock")))


async def test_completions_of_two_prompts() -> None:
    async with client_for(talking()) as client:
        whole = await client.completions.create(model="a", prompt=["x", "y"], max_tokens=5)
        stream = await client.completions.create(model="a", prompt="x", stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])
    assert [(choice.index, choice.text) for choice in whole.choices] == [(0, "Hello 🦊"), (1, "Hello 🦊")]
    assert text == "Hello 🦊"


async def test_models_of_the_client() -> None:
    async with client_for(talking()) as client:
        listed = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("gpt-4o")
    assert listed == ["a", "b", "embedder", "broken"]
    assert one.id == "a"


async def test_errors_are_the_clients_classes() -> None:
    async with client_for(talking()) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nobody", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as kind:
            await client.chat.completions.create(model="embedder", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as field:
            await client.chat.completions.create(model="a", messages=MESSAGES, temperature=9)
        with pytest.raises(openai.BadRequestError) as other_kind:
            await client.embeddings.create(model="a", input="x")
    assert (missing.value.code, kind.value.code, other_kind.value.code) == (
        "model_not_found",
        "wrong_model_kind",
        "wrong_model_kind",
    )
    assert "suitable: a, b" in kind.value.message
    assert "suitable: embedder" in other_kind.value.message
    assert field.value.param == "temperature"


async def test_error_in_stream_is_raised_by_the_client() -> None:
    residency = FakeResidency()
    begun = asyncio.Event()

    async def script(_request: TextRequest) -> AsyncIterator[Event]:
        yield delta("Hel")
        await begun.wait()
        yield failed("worker_died", "signal 9")

    residency.script = script
    async with client_for(residency) as client:
        stream = await client.chat.completions.create(model="a", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="signal 9"):
            async for _chunk in stream:
                begun.set()


async def test_client_retries_what_may_succeed_and_not_what_cannot() -> None:
    for error, calls in ((ServerOverloaded("full", retry_after_s=0.01), 2), (ModelTooLarge("too large"), 1)):
        asked = 0
        residency = refusing(error)
        acquire = residency.acquire

        def counted(*args: Any, _acquire: Any = acquire, **kwargs: Any) -> Any:
            nonlocal asked
            asked += 1
            return _acquire(*args, **kwargs)

        residency.acquire = counted  # type: ignore[method-assign]
        async with client_for(residency, max_retries=1) as client:
            with pytest.raises(openai.APIStatusError):
                await client.chat.completions.create(model="a", messages=MESSAGES)
        assert asked == calls


async def test_model_with_an_error_says_it_and_the_residency_hears_of_it() -> None:
    residency = FakeResidency()
    async with client_of(make_app(residency)) as client:
        answer = await client.post("/v1/chat/completions", json=chat_body(model="broken"))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "model_load_failed"
    assert "nowhere.gguf" in answer.json()["error"]["message"]
    assert residency.asked == [("note_files", "broken")]


async def test_ignored_hints_are_named_in_a_header() -> None:
    async with client_of(make_app(talking())) as client:
        whole = await client.post("/v1/chat/completions", json=chat_body(user="me", store=True))
        streamed = await client.post("/v1/chat/completions", json=chat_body(user="me", stream=True))
        plain = await client.post("/v1/chat/completions", json=chat_body())
    assert whole.headers["x-innkeeper-ignored"] == "user, store"
    assert streamed.headers["x-innkeeper-ignored"] == "user"
    assert "x-innkeeper-ignored" not in plain.headers


async def test_shutting_down_is_503_before_anything_else_is_looked_at() -> None:
    residency = talking()
    residency.is_shutting_down = True
    async with client_of(make_app(residency)) as client:
        answer: httpx.Response = await client.post("/v1/completions", json={"model": "a", "prompt": "x"})
        models = await client.get("/v1/models")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert models.status_code == 200


async def test_models_by_id_with_a_profile() -> None:
    registry = (
        "profiles: {calm: {sampling: {temperature: 0}}}\n"
        + 'models: [{id: a/b, source: "sim:", simulate: {weights: 1MiB}}]'
    )
    residency = talking()
    async with client_of(create_app(make_settings(), make_catalog(registry), residency)) as client:
        plain, calm = await client.get("/v1/models/a/b"), await client.get("/v1/models/a/b@calm")
        unknown = await client.get("/v1/models/a/b@wild")
        await client.post("/v1/chat/completions", json=chat_body(model="a/b@calm"))
    assert [(answer.json()["id"], answer.json()["profile"]) for answer in (plain, calm)] == [
        ("a/b", None),
        ("a/b", "calm"),
    ]
    assert plain.json()["profiles"] == ["calm"]
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert residency.leases[0].requests[0].sampling.temperature == 0
