"""OpenAI completions: prompts of every shape, options, and the bytes of answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.wire import Finished, TextPrompt, TokenPrompt, Usage
from gateway.errors import GatewayError, InvalidRequest, RequestTooLarge, UnsupportedParameter
from gateway.protocols import openai_completions
from gateway.protocols.completion import Completion, Piece
from gateway.protocols.openai_stream import AnswerHead
from gateway.protocols.options import Limits
from gateway.registry.catalog import RequestSettings
from tests.gateway.protocols.test_openai_chat import ANY_JSON

HEAD = AnswerHead(id="cmpl-1", created=1700000000, model="a")


def parse(prompt: Any = "once", limits: Limits | None = None, **options: Any) -> openai_completions.CompletionRequest:
    body = json.dumps({"model": "a", "prompt": prompt, **options}).encode()
    return openai_completions.parse(body, limits or Limits())


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
    ],
)
def test_prompt_wrong_shape_names_place(prompt: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(prompt)
    assert caught.value.param == param


def test_prompt_limits_are_413() -> None:
    with pytest.raises(RequestTooLarge, match="max_inputs allows 1"):
        parse(["a", "b"], Limits(max_inputs=1))
    with pytest.raises(RequestTooLarge, match="max_chars allows 3"):
        parse(["ab", "cd"], Limits(max_chars=3))
    with pytest.raises(RequestTooLarge, match="max_chars allows 3"):
        parse([1, 2, 3, 4], Limits(max_chars=3))


def test_max_tokens_is_16_unless_said() -> None:
    assert parse().options.max_tokens == 16
    assert parse(max_tokens=3).options.max_tokens == 3


def test_each_prompt_is_a_request_with_the_same_options() -> None:
    requests = parse(["a", "b"], stop=["x"], temperature=0).text_requests(RequestSettings())
    assert [request.prompt for request in requests] == [TextPrompt(text="a"), TextPrompt(text="b")]
    assert {(request.stop, request.sampling.temperature) for request in requests} == {(("x",), 0.0)}


@pytest.mark.parametrize(
    ("field", "value"),
    [("echo", True), ("best_of", 2), ("n", 2), ("suffix", "end"), ("logprobs", 0), ("messages", []), ("tools", [])],
)
def test_unsupported_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        parse(**{field: value})
    assert caught.value.param == field


def test_neutral_values_ask_for_nothing() -> None:
    assert parse(echo=False, best_of=1, n=1, suffix="", logprobs=None, presence_penalty=0, logit_bias={}) == parse()


def test_stream_golden_two_choices() -> None:
    stream = openai_completions.CompletionStream(HEAD, include_usage=True)
    sent = stream.render([Piece(1, "x"), Piece(0, "y", stop())]) + stream.render([Piece(1, "", stop())]) + stream.end()
    head = '"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"a"'

    def chunk(text: str, index: int, reason: str) -> str:
        choice = f'{{"text":"{text}","index":{index},"logprobs":null,"finish_reason":{reason}}}'
        return f'data: {{{head},"choices":[{choice}],"usage":null}}\n\n'

    assert sent.decode() == (
        chunk("x", 1, "null")
        + chunk("y", 0, "null")
        + chunk("", 0, '"stop"')
        + chunk("", 1, '"stop"')
        + f'data: {{{head},"choices":[],"usage":{{"prompt_tokens":2,"completion_tokens":4,"total_tokens":6,'
        + '"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
        + "data: [DONE]\n\n"
    )


def test_body_golden() -> None:
    body = json.loads(openai_completions.render_body(HEAD, [Completion(0, "x", stop()), Completion(1, "y", stop())]))
    assert [(c["index"], c["text"], c["finish_reason"]) for c in body["choices"]] == [
        (0, "x", "stop"),
        (1, "y", "stop"),
    ]
    assert body["object"] == "text_completion"
    assert body["usage"]["total_tokens"] == 6


NAMES = sorted(openai_completions.OPTIONS.honoured | set(openai_completions.OPTIONS.refused))


@given(st.dictionaries(st.sampled_from(NAMES), ANY_JSON | st.lists(st.lists(st.integers())), max_size=6))
def test_parse_any_json_is_request_or_400(options: dict[str, Any]) -> None:
    body = json.dumps({"model": "a", "prompt": "x", **options}).encode()
    try:
        completion = openai_completions.parse(body)
    except GatewayError as error:
        assert error.status == 400
    else:
        completion.text_requests(RequestSettings())
