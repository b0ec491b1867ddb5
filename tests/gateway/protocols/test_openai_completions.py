"""OpenAI completions: prompts of every shape, options, and the bytes of answers."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.wire import Finished, InfillPrompt, TextPrompt, TextRequest, TokenLogprob, TokenPrompt, Usage
from gateway.errors import GatewayError, InvalidRequest, RequestTooLarge, UnsupportedParameter
from gateway.protocols import openai_completions
from gateway.protocols.completion import AnswerHead, Completion, Text
from gateway.protocols.options import Limits
from gateway.registry.catalog import RequestSettings
from tests.gateway.protocols.test_openai_chat import ANY_JSON

HEAD = AnswerHead(id="cmpl-1", created=1700000000, model="a")


def parse(prompt: Any = "once", limits: Limits | None = None, **options: Any) -> openai_completions.CompletionRequest:
    body = json.dumps({"model": "a", "prompt": prompt, **options}).encode()
    return openai_completions.parse(body, limits or Limits())


def requests_of(completion: openai_completions.CompletionRequest) -> list[TextRequest]:
    return completion.text_requests(RequestSettings(), itertools.count(1))


def stop(prompt: int = 1, completion: int = 2) -> Finished:
    return Finished(request_id=1, reason="stop", usage=Usage(prompt_tokens=prompt, completion_tokens=completion))


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("once", (TextPrompt(text="once"),)),
        ("", (TextPrompt(text=""),)),
        (["once", "twice"], (TextPrompt(text="once"), TextPrompt(text="twice"))),
        ([1, 2, 3], (TokenPrompt(tokens=(1, 2, 3)),)),
        ([[1, 2], [3]], (TokenPrompt(tokens=(1, 2)), TokenPrompt(tokens=(3,)))),
        (["once", [3]], (TextPrompt(text="once"), TokenPrompt(tokens=(3,)))),
    ],
)
def test_prompt_shapes(prompt: Any, read: tuple[TextPrompt | TokenPrompt, ...]) -> None:
    assert parse(prompt).prompts == read


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (5, "prompt"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        ([1, "x"], "prompt[1]"),
        ([1, -1], "prompt[1]"),
        ([[1, True]], "prompt[0][1]"),
        ([2**31], "prompt[0]"),
        ([1.5], "prompt[0]"),
        ([None], "prompt[0]"),
        ([5.0, 1.5], "prompt[1]"),
    ],
)
def test_prompt_wrong_shape_names_place(prompt: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(prompt)
    assert caught.value.param == param


@pytest.mark.parametrize("prompt", [[5.0, 6], [[5, 6.0]]])
def test_prompt_takes_whole_numbers_as_token_ids_however_they_are_written(prompt: Any) -> None:
    (read,) = parse(prompt).prompts
    assert read == TokenPrompt(tokens=(5, 6))
    assert all(type(token) is int for token in read.tokens)


def test_prompt_limits_are_413() -> None:
    with pytest.raises(RequestTooLarge, match="max_inputs allows 1"):
        parse(["a", "b"], Limits(max_inputs=1))
    with pytest.raises(RequestTooLarge, match="max_chars allows 3"):
        parse(["ab", "cd"], Limits(max_chars=3))
    with pytest.raises(RequestTooLarge, match="max_chars allows 3"):
        parse([1, 2, 3, 4], Limits(max_chars=3))


def test_max_tokens_is_16_unless_the_request_or_the_model_says() -> None:
    limited = RequestSettings(max_tokens=7)
    cases: list[tuple[dict[str, Any], RequestSettings, int]] = [
        ({}, RequestSettings(), 16),
        ({}, limited, 7),
        ({"max_tokens": 3}, limited, 3),
    ]
    for options, settings, expected in cases:
        (request,) = parse(**options).text_requests(settings, itertools.count(1))
        assert request.max_tokens == expected


def test_priority_is_the_model_s_unless_the_request_says() -> None:
    settings = RequestSettings(priority="batch")
    cases: list[tuple[dict[str, Any], str]] = [({}, "batch"), ({"priority": "normal"}, "normal")]
    for options, expected in cases:
        (request,) = parse(**options).text_requests(settings, itertools.count(1))
        assert request.priority == expected


def test_each_prompt_is_a_request_with_the_same_options() -> None:
    requests = requests_of(parse(["a", "b"], stop=["x"], temperature=0))
    assert [request.prompt for request in requests] == [TextPrompt(text="a"), TextPrompt(text="b")]
    assert {(request.stop, request.sampling.temperature) for request in requests} == {(("x",), 0.0)}


@pytest.mark.parametrize(
    ("field", "value"),
    [("messages", []), ("tools", []), ("max_completion_tokens", 5), ("repeat_penalty", 1.1), ("min_tokens", 1)],
)
def test_unsupported_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        parse(**{field: value})
    assert caught.value.param == field


def test_neutral_values_ask_for_nothing() -> None:
    neutral = parse(echo=False, best_of=1, n=1, suffix="", logprobs=False, presence_penalty=0, logit_bias={})
    assert requests_of(neutral) == requests_of(parse())


@pytest.mark.parametrize(
    ("field", "options", "says"),
    [
        ("best_of", {"best_of": 21}, "1 to 20"),
        ("best_of", {"best_of": 2, "n": 3}, "not be below n, which is 3"),
        ("best_of", {"best_of": 2, "stream": True}, "when stream is true"),
        ("n", {"n": 129}, "1 to 128"),
        ("logprobs", {"logprobs": 6}, "0 to 5"),
        ("logprobs", {"logprobs": True}, "an integer"),
        ("echo", {"echo": "yes"}, "true or false"),
        ("max_tokens", {"max_tokens": 0}, "1 to"),
        ("max_tokens", {"max_tokens": -1, "echo": True}, "0 to"),
        ("suffix", {"suffix": 5}, "a string"),
        ("suffix", {"suffix": "end", "echo": True}, "echo must be false"),
        ("suffix", {"suffix": "end", "prompt": [1, 2]}, "not token ids"),
        ("priority", {"priority": 1}, "interactive, normal, batch"),
    ],
)
def test_out_of_range_names_field_and_range(field: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as caught:
        parse(**options)
    assert caught.value.param == field


def test_every_option_reaches_the_request() -> None:
    (request,) = requests_of(
        parse(
            echo=True, max_tokens=0, logprobs=5, frequency_penalty=0.5, logit_bias={"7": 1}, priority="interactive",
            repetition_penalty=1.5, min_p=0.1, top_k=5,
        )
    )  # fmt: skip
    assert (request.echo, request.max_tokens, request.logprobs, request.priority) == (True, 0, 5, "interactive")
    assert (request.sampling.frequency_penalty, request.sampling.logit_bias) == (0.5, {7: 1.0})
    assert (request.sampling.repetition_penalty, request.sampling.min_p, request.sampling.top_k) == (1.5, 0.1, 5)


def test_suffix_makes_the_prompts_the_text_before_a_gap() -> None:
    requests = requests_of(parse(["a", "b"], suffix="end"))
    assert [request.prompt for request in requests] == [InfillPrompt(prefix=text, suffix="end") for text in "ab"]


def test_choices_of_each_prompt_are_siblings() -> None:
    requests = requests_of(parse(["a", "b"], n=2, seed=5))
    assert [(request.siblings, request.sampling.seed) for request in requests] == [(1, 5), (1, 6), (2, 5), (2, 6)]
    assert [request.prompt for request in requests[1:3]] == [TextPrompt(text="a"), TextPrompt(text="b")]


def test_best_of_makes_more_and_asks_for_log_probabilities() -> None:
    completion = parse(best_of=3, n=2)
    assert (completion.logprobs, [request.logprobs for request in requests_of(completion)]) == (None, [0, 0, 0])
    assert [request.logprobs for request in requests_of(parse(best_of=2, n=2))] == [None, None]
    assert [request.logprobs for request in requests_of(parse(best_of=3, logprobs=4))] == [4, 4, 4]


def test_choices_count_as_inputs() -> None:
    with pytest.raises(RequestTooLarge, match=r"2 prompts with 3 choices each .*max_inputs, 5"):
        parse(["a", "b"], Limits(max_inputs=5), n=3)
    assert parse(["a", "b"], Limits(max_inputs=6), n=3).choices == 3


def made(index: int, *logprobs: float, prompt: int = 1) -> Completion:
    tokens = tuple(TokenLogprob(1, b"x", logprob) for logprob in logprobs)
    return Completion(index, (Text(f"c{index}", tokens),), stop(prompt, len(logprobs)))


def test_best_of_answers_the_best_by_mean_and_counts_all() -> None:
    completions = [made(0, -3.0), made(1, -1.0, -1.0, -1.0), made(2, -2.0), made(3, -5.0), made(4), made(5, -4.0)]
    body = json.loads(openai_completions.render_body(HEAD, completions, choices=2, made=3))
    assert [(c["index"], c["text"], c["logprobs"]) for c in body["choices"]] == [
        (0, "c1", None),
        (1, "c2", None),
        (2, "c5", None),
        (3, "c3", None),
    ]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (2, 7)


def test_best_of_leaves_an_echoed_prompt_out_of_the_mean() -> None:
    completions = [made(0, -9.0, -9.0, -1.0, prompt=2), made(1, -9.0, -9.0, -2.0, -2.0, -2.0, -2.0, prompt=2)]
    body = json.loads(openai_completions.render_body(HEAD, completions, choices=1, made=2, echo=True, logprobs=True))
    assert [choice["text"] for choice in body["choices"]] == ["c0"]
    assert len(body["choices"][0]["logprobs"]["tokens"]) == 3


@pytest.mark.parametrize("cached_tokens", [(4, 9, 0, 9), (9, 4, 9, 0), (4, 9, 9, 0)])
def test_usage_counts_a_prompt_once_and_no_sibling_as_cached(cached_tokens: tuple[int, ...]) -> None:
    def usage(cached: int) -> Finished:
        return Finished(
            request_id=1, reason="stop", usage=Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=cached)
        )

    completions = [Completion(i, (Text("x"),), usage(cached)) for i, cached in enumerate(cached_tokens)]
    body = json.loads(openai_completions.render_body(HEAD, completions, choices=2, made=2))
    assert body["usage"] == {
        "prompt_tokens": 18,
        "completion_tokens": 8,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


NAMES = sorted(openai_completions.OPTIONS.honoured | set(openai_completions.OPTIONS.refused))


@given(st.dictionaries(st.sampled_from(NAMES), ANY_JSON | st.lists(st.lists(st.integers())), max_size=6))
def test_parse_any_json_is_request_or_400(options: dict[str, Any]) -> None:
    body = json.dumps({"model": "a", "prompt": "x", **options}).encode()
    try:
        completion = openai_completions.parse(body)
    except GatewayError as error:
        assert error.status == 400
    else:
        requests_of(completion)
