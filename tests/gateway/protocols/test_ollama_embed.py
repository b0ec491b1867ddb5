"""Bodies of Ollama's embedding routes: what asks for nothing, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.errors import InvalidRequest, RequestTooLarge
from gateway.protocols.ollama_embed import OllamaEmbedRequest, parse_embed, parse_embeddings
from gateway.protocols.options import Limits

Parse = Callable[..., OllamaEmbedRequest]


def body(**options: Any) -> bytes:
    return json.dumps({"model": "a", **options}).encode()


@pytest.mark.parametrize(
    ("parse", "options"),
    [(parse_embed, {}), (parse_embed, {"input": ""}), (parse_embed, {"input": []}), (parse_embeddings, {"prompt": ""})],
)
def test_request_without_text_asks_for_the_model_alone(parse: Parse, options: dict[str, Any]) -> None:
    loads, unloads = parse(body(**options)), parse(body(**options, keep_alive=0))
    assert (loads.ask, loads.unloads) == (None, False)
    assert (unloads.ask, unloads.unloads) == (None, True)


def test_options_are_checked_and_told_to_be_ignored() -> None:
    request = parse_embed(body(input="x", options={"num_ctx": 9, "temperature": 0.5, "num_thread": 2, "seed": None}))
    assert (request.context, request.ignored) == (
        9,
        ("options.num_ctx", "options.temperature", "options.num_thread"),
    )


@pytest.mark.parametrize(
    ("parse", "options", "param"),
    [
        (parse_embed, {"input": 5}, "input"),
        (parse_embed, {"input": ["x", 5]}, "input[1]"),
        (parse_embed, {"input": "x", "truncate": "end"}, "truncate"),
        (parse_embed, {"input": "x", "dimensions": -1}, "dimensions"),
        (parse_embed, {"input": "x", "options": {"temperature": 9}}, "options.temperature"),
        (parse_embed, {"input": "x", "options": {"nonsense": 1}}, "options.nonsense"),
        (parse_embed, {"prompt": "x"}, "prompt"),
        (parse_embeddings, {"prompt": 0}, "prompt"),
        (parse_embeddings, {"prompt": "x", "keep_alive": "soon"}, "keep_alive"),
        (parse_embeddings, {"input": "x"}, "input"),
    ],
)
def test_parse_refuses_by_name(parse: Parse, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(body(**options))
    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("parse", "options", "param"),
    [
        (parse_embed, {"input": ["x"] * 4}, "input"),
        (parse_embed, {"input": ["x" * 20, "y"]}, "input"),
        (parse_embeddings, {"prompt": "x" * 21}, "prompt"),
    ],
)
def test_parse_holds_a_request_to_its_limits(parse: Parse, options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestTooLarge) as refusal:
        parse(body(**options), Limits(max_inputs=3, max_chars=20))
    assert refusal.value.param == param
