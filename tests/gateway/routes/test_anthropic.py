"""Anthropic's routes as its official client sees them, over a real socket; workers are fakes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import MessageParam, ToolParam

from engines.wire import (
    Admitted,
    EncodeChat,
    Event,
    Failed,
    ReasoningDelta,
    TextRequest,
    TokenizerAnswer,
    ToolCallDelta,
    ToolCallStarted,
    WireError,
)
from gateway.errors import ModelTooLarge, RateLimited, ServerOverloaded
from gateway.settings import ApiKey
from tests.gateway.helpers_app import KEY, client_of, make_app
from tests.gateway.helpers_residency import BOUND_S, FakeResidency, delta, failed, finished, refusing
from tests.gateway.helpers_server import serving

ASK: list[MessageParam] = [{"role": "user", "content": "hello"}]
BODY: dict[str, Any] = {"model": "a", "max_tokens": 100, "messages": ASK}
TOOL: ToolParam = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}


@asynccontextmanager
async def client_for(residency: FakeResidency, *, max_retries: int = 0) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with (
        serving(make_app(residency)) as served,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="none needed", max_retries=max_retries) as client,
    ):
        yield client


def admitted(prompt: int = 3) -> Admitted:
    return Admitted(request_id=1, prompt_tokens=prompt)


def calling() -> FakeResidency:
    return FakeResidency(
        admitted(),
        ReasoningDelta(request_id=1, text="Hm."),
        delta("I call."),
        ToolCallStarted(request_id=1, index=0, id="call_1", name="f"),
        ToolCallDelta(request_id=1, index=0, arguments='{"a":'),
        ToolCallDelta(request_id=1, index=0, arguments=" 1}"),
        finished("tool_calls"),
    )


async def test_message_whole_and_streamed_are_the_same() -> None:
    async with client_for(calling()) as client:
        whole = await client.messages.create(model="gpt-4o", max_tokens=100, messages=ASK, tools=[TOOL])
        async with client.messages.stream(model="a", max_tokens=100, messages=ASK, tools=[TOOL]) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in whole.content]
    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert (whole.model, whole.usage.input_tokens, whole.usage.output_tokens) == ("a", 3, 2)
    assert whole.id.startswith("msg_")
    assert [kind for kind in kinds if kind in ("thinking", "signature", "text", "input_json")] == [
        *("thinking", "signature", "text", "input_json", "input_json")
    ]


async def test_answer_goes_back_with_the_tools_result() -> None:
    residency = calling()
    async with client_for(residency) as client:
        first = await client.messages.create(**BODY, tools=[TOOL])
        (call,) = [block for block in first.content if block.type == "tool_use"]
        result: MessageParam = {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "42", "is_error": True}],
        }
        await client.messages.create(model="a", max_tokens=9, messages=[*ASK, first.to_param(), result], tools=[TOOL])
    prompt: Any = residency.leases[1].requests[0].prompt
    _, assistant, tool = prompt.messages
    assert (assistant.content, assistant.extra["reasoning_content"]) == ("I call.", "Hm.")
    assert assistant.extra["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert (tool.content, tool.extra["tool_call_id"]) == ("Error: 42", "call_1")


async def test_betas_versions_and_queries_of_any_kind_are_taken() -> None:
    residency = FakeResidency(delta("Hi"), finished())
    async with client_for(residency) as client:
        answer = await client.beta.messages.create(
            **BODY,
            betas=["context-management-2025-06-27", "interleaved-thinking-2025-05-14"],
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        )
    assert answer.content[0].type == "text"
    async with client_of(make_app(residency)) as http:
        plain = await http.post("/v1/messages", json=BODY)
        odd = await http.post("/v1/messages?beta=true", json=BODY, headers={"anthropic-version": "1999-12-31"})
    assert (plain.status_code, odd.status_code) == (200, 200)


async def test_hints_are_named_and_the_request_has_an_id() -> None:
    async with client_of(make_app(FakeResidency(delta("Hi"), finished()))) as http:
        hinted = await http.post("/v1/messages", json={**BODY, "metadata": {}, "cache_control": {"type": "ephemeral"}})
        counted = await http.post("/v1/messages/count_tokens", json={**BODY, "metadata": {}})
        refused = await http.post("/v1/messages", json={**BODY, "model": "nobody"})
        other = await http.get("/v1/models")
    assert hinted.headers["x-innkeeper-ignored"] == "metadata, cache_control"
    assert counted.headers["x-innkeeper-ignored"] == "max_tokens, metadata"
    for answer in (hinted, counted, refused):
        assert answer.headers["request-id"] == answer.headers["x-request-id"]
    assert refused.json()["request_id"] == refused.headers["request-id"]
    assert "request-id" not in other.headers


async def test_key_comes_as_anthropics_clients_send_it() -> None:
    app = make_app(FakeResidency(delta("Hi"), finished()), keys=[ApiKey(KEY)])
    async with serving(app) as served:
        async with anthropic.AsyncAnthropic(base_url=served.url, api_key=KEY, max_retries=0) as client:
            assert (await client.messages.create(**BODY)).stop_reason == "end_turn"
        async with anthropic.AsyncAnthropic(base_url=served.url, auth_token=KEY, api_key=None, max_retries=0) as client:
            assert (await client.messages.create(**BODY)).stop_reason == "end_turn"
        async with anthropic.AsyncAnthropic(base_url=served.url, api_key="other", max_retries=0) as client:
            with pytest.raises(anthropic.AuthenticationError) as refusal:
                await client.messages.create(**BODY)
    assert refusal.value.body == {
        "type": "error",
        "error": {"type": "authentication_error", "message": refusal.value.body["error"]["message"]},  # type: ignore[index]
        "request_id": refusal.value.request_id,
    }


@pytest.mark.parametrize(
    ("residency", "kind", "type_"),
    [
        (refusing(ServerOverloaded("full")), anthropic.ServiceUnavailableError, "overloaded_error"),
        (refusing(ModelTooLarge("too large")), anthropic.InternalServerError, "api_error"),
        (refusing(RateLimited("slowly")), anthropic.RateLimitError, "rate_limit_error"),
        (FakeResidency(failed("invalid_request_error")), anthropic.BadRequestError, "invalid_request_error"),
    ],
    ids=["overloaded", "too_large", "rate_limit", "invalid"],
)
async def test_errors_are_the_clients_classes(
    residency: FakeResidency, kind: type[anthropic.APIStatusError], type_: str
) -> None:
    async with client_for(residency) as client:
        with pytest.raises(kind) as refusal:
            await client.messages.create(**BODY)
    body: Any = refusal.value.body
    assert (body["type"], body["error"]["type"]) == ("error", type_)


async def test_other_refusals_are_the_clients_classes() -> None:
    async with client_for(FakeResidency()) as client:
        with pytest.raises(anthropic.NotFoundError, match="the registry has"):
            await client.messages.create(model="nobody", max_tokens=1, messages=ASK)
        with pytest.raises(anthropic.BadRequestError, match="embedding model"):
            await client.messages.create(model="embedder", max_tokens=1, messages=ASK)
        with pytest.raises(anthropic.BadRequestError, match="web_search_20250305"):
            await client.messages.create(**BODY, tools=[{"type": "web_search_20250305", "name": "web_search"}])
        with pytest.raises(anthropic.RequestTooLargeError):
            await client.messages.create(
                model="a", max_tokens=1, messages=[{"role": "user", "content": "x" * 1_000_001}]
            )


async def test_prompt_that_is_too_long_is_told_in_anthropics_words() -> None:
    error = WireError(code="context_length_exceeded", message="No.", tokens=9000, most_tokens=8191)
    residency = FakeResidency(Failed(request_id=1, error=error))
    async with client_for(residency) as client:
        for streamed in (False, True):
            with pytest.raises(anthropic.BadRequestError) as refusal:
                await client.messages.create(**BODY, stream=streamed)
            body: Any = refusal.value.body
            assert body["error"] == {
                "type": "invalid_request_error",
                "message": "prompt is too long: 9000 tokens > 8191 maximum",
            }


async def test_error_in_a_stream_is_one_event_and_its_end() -> None:
    residency = FakeResidency()
    begun = asyncio.Event()

    async def script(_request: TextRequest) -> AsyncIterator[Event]:
        yield admitted()
        yield delta("Hel")
        await begun.wait()
        yield failed("worker_died", "signal 9")

    residency.script = script
    async with client_for(residency) as client:
        stream = await client.messages.create(**BODY, stream=True)
        text = ""
        with pytest.raises(anthropic.APIStatusError, match="signal 9") as refusal:
            async for event in stream:
                begun.set()
                if event.type == "content_block_delta" and event.delta.type == "text_delta":
                    text += event.delta.text
    assert text == "Hel"
    body: Any = refusal.value.body
    assert (body["error"]["type"], body["request_id"]) == ("overloaded_error", stream.response.headers["request-id"])


async def test_pings_keep_a_waiting_stream_alive() -> None:
    residency = FakeResidency()
    go_on = asyncio.Event()

    async def script(_request: TextRequest) -> AsyncIterator[Event]:
        await go_on.wait()
        yield admitted(7)
        yield delta("Hi")
        yield finished()

    residency.script = script
    events: list[str] = []
    async with (
        asyncio.timeout(BOUND_S),
        serving(make_app(residency, keepalive_s=0.02)) as served,
        httpx.AsyncClient(base_url=served.url, timeout=BOUND_S) as http,
        http.stream("POST", "/v1/messages", json={**BODY, "stream": True}) as answer,
    ):
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                events.append(line.removeprefix("event: "))
            if events.count("ping") == 2:
                go_on.set()
    assert events[:3] == ["message_start", "ping", "ping"]
    assert [event for event in events if event != "ping"][1:] == [
        *("content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop")
    ]


async def test_stream_begins_with_the_tokens_of_its_prompt() -> None:
    async with client_for(FakeResidency(admitted(7), delta("Hi"), finished(prompt=7))) as client:
        stream = await client.messages.create(**BODY, stream=True)
        (start, *_) = [event async for event in stream]
    assert start.type == "message_start"
    assert start.message.usage.input_tokens == 7


async def test_count_is_of_the_prompt_and_needs_no_lease() -> None:
    residency = FakeResidency()
    residency.tokenizer.answer = TokenizerAnswer(tokens=(1, 2, 3))
    async with client_for(residency) as client:
        count = await client.messages.count_tokens(model="a", messages=ASK, system="Be brief.", tools=[TOOL])
        beta = await client.beta.messages.count_tokens(model="a", messages=[{"role": "user", "content": "hello"}])
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.count_tokens(model="nobody", messages=ASK)
    assert (count.input_tokens, beta.input_tokens, residency.leases) == (3, 3, [])
    what = residency.tokenizer.asked[0][1]
    assert isinstance(what, EncodeChat)
    assert [message.role for message in what.prompt.messages] == ["system", "user"]
    assert what.tools is not None and what.tools.tools[0].name == "f"


async def test_models_are_read_by_anthropics_client_too() -> None:
    async with client_for(FakeResidency()) as client:
        listed = [model async for model in client.models.list()]
        paged = [page async for page in (await client.models.list(limit=3)).iter_pages()]
        one = await client.models.retrieve("gpt-4o")
    assert [model.id for model in listed] == ["a", "b", "embedder", "broken"]
    assert [[model.id for model in page.data] for page in paged] == [["a", "b", "embedder"], ["broken"]]
    assert (one.type, one.id, one.display_name) == ("model", "a", "a")
    assert one.created_at.tzinfo is not None


async def test_root_answers_head() -> None:
    async with client_of(make_app()) as http:
        answer = await http.head("/")
    assert (answer.status_code, answer.content) == (200, b"")


async def test_unknown_path_below_messages_is_anthropics_error() -> None:
    async with client_of(make_app()) as http:
        batches = await http.post("/v1/messages/batches", json={})
        get = await http.get("/v1/messages")
    assert (batches.status_code, batches.json()["error"]["type"]) == (404, "not_found_error")
    assert (get.status_code, get.headers["allow"], json.loads(get.content)["type"]) == (405, "POST", "error")
