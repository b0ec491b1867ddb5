"""The text engine's options on SmolLM2: against stock mlx-lm on the dequantised weights, and rows of a batch against each alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engines.header import read_header
from engines.text.engine import GgufTextEngine
from engines.text.loader import build
from engines.text.sampling import SamplingParameters
from engines.wire import (
    ChatMessage,
    ChatPrompt,
    Event,
    Finished,
    LoadModel,
    ModelSpec,
    Sampling,
    TextDelta,
    TextPrompt,
    TextRequest,
    TokenLogprob,
    TokenPrompt,
)
from tests.engines.gguf.helpers_stock import stock_smollm2
from tests.engines.text.helpers_rows import adjusted

pytestmark = pytest.mark.slow

TIE = 1e-3  # logits so close may be ordered either way by sums in another order
CLOSE = 2e-3  # of log-probabilities
PENALTIES: dict[str, Any] = {"frequency_penalty": 0.6, "presence_penalty": 0.4, "repetition_penalty": 1.2}


@pytest.fixture
def engine(smollm2_path: Path) -> GgufTextEngine:
    spec = ModelSpec(id="smollm2", task="text", format="gguf", paths=(str(smollm2_path),))
    return build(LoadModel(spec=spec), lambda fraction: None)


def answers(engine: GgufTextEngine, requests: Sequence[TextRequest]) -> list[list[Event]]:
    """Each request's events, when they are submitted together."""
    for number, request in enumerate(requests):
        engine.submit(number, engine.prepare(request))
    events: list[list[Event]] = [[] for _ in requests]
    while engine.busy:
        for event in engine.step():
            events[event.request_id].append(event)
    return events


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def test_text_whose_control_tokens_are_read_is_what_a_template_writes(engine: GgufTextEngine) -> None:
    def tokens(prompt: ChatPrompt | TextPrompt) -> tuple[int, ...]:
        return engine.prepare(TextRequest(prompt=prompt)).tokens

    system, user = ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="Hi")
    written = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    chat = tokens(ChatPrompt(messages=(system, user)))
    assert tokens(TextPrompt(text=written, parse_special=True)) == chat
    assert len(tokens(TextPrompt(text=written))) > len(chat)


def entries_of(events: Sequence[Event]) -> list[TokenLogprob]:
    return [entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs]


def end_of(events: Sequence[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def test_scores_of_prompt_and_answer_and_punished_choices_are_those_of_stock_s_logits(
    engine: GgufTextEngine, smollm2_path: Path
) -> None:
    """One teacher-forced pass of the stock class over prompt and answer says what every entry must be, and what greedy
    decoding with penalties and a bias must choose at each place."""
    prompt = "Row, row, row your boat, row"
    tokens = list(engine.prepare(TextRequest(prompt=TextPrompt(text=prompt))).tokens)
    bias = {tokens[0]: 2.0, tokens[-1]: -1.5}
    request = TextRequest(
        prompt=TextPrompt(text=prompt),
        sampling=Sampling(temperature=0.0, logit_bias=bias, **PENALTIES),
        max_tokens=10,
        logprobs=5,
        echo=True,
    )
    (events,) = answers(engine, [request])
    entries = entries_of(events)
    answer = [entry.token for entry in entries[len(tokens) :]]
    assert [entry.token for entry in entries[: len(tokens)]] == tokens
    assert text_of(events).startswith(prompt) and len(answer) == 10 == end_of(events).usage.completion_tokens
    assert b"".join(entry.raw for entry in entries).decode() == text_of(events)

    stock = stock_smollm2(read_header(smollm2_path))
    logits = np.array(stock(mx.array([tokens + answer]))[0], np.float64)
    alone = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
    alone -= logits.max(-1, keepdims=True)
    assert entries[0].logprob is None and entries[0].top == ()
    for place, entry in enumerate(entries[1:]):
        assert entry.logprob == pytest.approx(alone[place, entry.token], abs=CLOSE)
        assert [top.logprob for top in entry.top] == pytest.approx(np.sort(alone[place])[::-1][:5].tolist(), abs=CLOSE)
        assert [top.logprob for top in entry.top] == pytest.approx(
            [alone[place, top.token] for top in entry.top], abs=CLOSE
        )

    parameters = SamplingParameters(seed=0, logit_bias=tuple(bias.items()), **PENALTIES)
    chosen_otherwise = 0
    for step, token in enumerate(answer):
        own = logits[len(tokens) - 1 + step]
        changed = adjusted(own, parameters, tokens, answer[:step])
        assert changed.max() - changed[token] < TIE, f"token {step} of the answer"
        chosen_otherwise += int(own.argmax()) != token
    assert chosen_otherwise > 0  # the penalties did something


def test_a_batch_of_eight_mixed_rows_equals_each_row_alone(engine: GgufTextEngine) -> None:
    chat = ChatPrompt(messages=(ChatMessage(role="user", content="Name a colour."),))
    continued = ChatPrompt(
        messages=(*chat.messages, ChatMessage(role="assistant", content="A colour is")), add_generation_prompt=False
    )
    story = TextPrompt(text="Once upon a time there was a")
    greedy, seeded = Sampling(temperature=0.0), Sampling(temperature=0.8, top_p=0.9, top_k=50, seed=11)
    requests = [
        TextRequest(prompt=story, sampling=greedy, max_tokens=3),
        TextRequest(prompt=story, sampling=seeded, max_tokens=5, logprobs=3),
        TextRequest(
            prompt=TextPrompt(text="la la la la"), sampling=Sampling(temperature=0.0, **PENALTIES), max_tokens=5
        ),
        TextRequest(prompt=chat, sampling=Sampling(temperature=0.0, logit_bias={7: 3.0, 260: -100.0}), max_tokens=4),
        TextRequest(prompt=continued, sampling=greedy, max_tokens=3, logprobs=0),
        TextRequest(prompt=TextPrompt(text="Two, four,"), sampling=greedy, max_tokens=3, echo=True, logprobs=1),
        TextRequest(prompt=TokenPrompt(tokens=(504, 3575, 282)), sampling=seeded, max_tokens=5, stop=("e", " the")),
        TextRequest(prompt=story, sampling=Sampling(temperature=1.0, seed=3, min_p=0.05, **PENALTIES), max_tokens=5),
    ]
    together = answers(engine, requests)
    for request, events in zip(requests, together, strict=True):
        (alone,) = answers(engine, [request])
        assert text_of(events) == text_of(alone)
        assert end_of(events).reason == end_of(alone).reason
        assert end_of(events).usage == end_of(alone).usage
        got, wanted = entries_of(events), entries_of(alone)
        assert [entry.token for entry in got] == [entry.token for entry in wanted]
        for ours, theirs in zip(got, wanted, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=CLOSE)
    assert text_of(together[4]).startswith(" ")  # an answer that goes on keeps its space


def test_siblings_say_what_each_would_alone_and_read_their_prompt_once(engine: GgufTextEngine) -> None:
    prompt = TextPrompt(text="The innkeeper keeps the keys, and the guests keep the rooms; and so the")

    def request(seed: int, siblings: int | None) -> TextRequest:
        sampling = Sampling(temperature=1.0, seed=seed, frequency_penalty=0.3)
        return TextRequest(prompt=prompt, sampling=sampling, max_tokens=5, siblings=siblings)

    shared = answers(engine, [request(seed, 1) for seed in range(3)])
    alone = answers(engine, [request(seed, None) for seed in range(3)])
    assert [text_of(events) for events in shared] == [text_of(events) for events in alone]
    assert len({text_of(events) for events in shared}) == 3
    length = end_of(shared[0]).usage.prompt_tokens
    assert [end_of(events).usage.cached_tokens for events in shared] == [0, length - 1, length - 1]
    assert [end_of(events).usage.cached_tokens for events in alone] == [0, 0, 0]
