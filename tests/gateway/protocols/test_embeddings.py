"""Bodies of ``/v1/embeddings`` that are refused, and which limits they are held to. What is taken: the transcripts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest, RequestTooLarge
from gateway.protocols.embeddings import INPUT_TYPES, parse
from gateway.protocols.options import Limits

LIMITS = Limits(max_inputs=3, max_chars=20)


def body(**options: Any) -> bytes:
    return json.dumps({"model": "a", "input": "x", **options}).encode()


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"input": None}, "input", "input is missing"),
        ({"input": []}, "input", "an array of 0"),
        ({"input": {"text": "x"}}, "input", "input is an object"),
        ({"input": [True]}, "input[0]", "input[0] is true"),
        ({"input": ["x", []]}, "input[1]", "an array of 0"),
        ({"input": ["x", 5]}, "input[1]", "input[1] is 5"),
        ({"input": [5, "x"]}, "input[1]", "a token id from 0"),
        ({"input": [[5, -1]]}, "input[0][1]", "input[0][1] is -1"),
        ({"input": [1.5]}, "input[0]", "input[0] is 1.5"),
        ({"encoding_format": "binary"}, "encoding_format", "one of float, base64"),
        ({"dimensions": 0}, "dimensions", "an integer from 1"),
        ({"input_type": "classification"}, "input_type", "one of query, search_query, document"),
        ({"truncate": "middle"}, "truncate", "one of none, start, end"),
        ({"normalize": 1}, "normalize", "true or false"),
        ({"instruction": ""}, "instruction", "at least one character"),
        ({"priority": "urgent"}, "priority", "interactive, normal, batch"),
        ({"task": "retrieval.query"}, "task", "use input_type"),
        ({"stream": True}, "stream", "unknown parameter"),
        ({"model": None}, "model", "model is missing"),
    ],
)
def test_parse_refuses_by_name(options: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(body(**options))
    assert refusal.value.param == param
    assert says in refusal.value.message


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input": ["x"] * 4}, "4 inputs; server.max_inputs allows 3"),
        ({"input": "x" * 21}, "21 characters; server.max_chars allows 20"),
        ({"input": ["x" * 10, "y" * 11]}, "21 characters"),
        ({"input": list(range(21))}, "21 characters"),
        ({"input": [[1] * 10, "y" * 11]}, "21 characters"),
        ({"input": ["x", "y", "z"], "instruction": "Find!!"}, "21 characters"),
    ],
)
def test_parse_holds_a_request_to_its_limits(options: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestTooLarge) as refusal:
        parse(body(**options), LIMITS)
    assert refusal.value.param == "input"
    assert says in refusal.value.message


def test_parse_takes_what_is_just_within_the_limits() -> None:
    request = parse(body(input=["x" * 10, "", list(range(10))]), LIMITS)
    assert request.ask.inputs == ("x" * 10, "", tuple(range(10)))


def test_parse_knows_every_name_of_a_purpose() -> None:
    told = {name: parse(body(input_type=name)).ask.purpose for name in INPUT_TYPES}
    assert told == INPUT_TYPES
    assert parse(body()).ask.purpose is None
