"""Queries of stored responses, and lists of items."""

from __future__ import annotations

import json

import pytest

from gateway.errors import GatewayError, InvalidRequest
from gateway.protocols.responses_errors import in_own_terms
from gateway.protocols.responses_query import PageWish, ReadWish, page_object, parse_page, parse_read


@pytest.mark.parametrize(
    ("query", "wish"),
    [
        ([], ReadWish()),
        ([("stream", "true"), ("starting_after", "5")], ReadWish(True, 5)),
        ([("stream", "True")], ReadWish(True)),
        ([("stream", "false"), ("include_obfuscation", "true")], ReadWish()),
        ([("include[]", "reasoning.encrypted_content"), ("include[]", "message.output_text.logprobs")], ReadWish()),
    ],
)
def test_read(query: list[tuple[str, str]], wish: ReadWish) -> None:
    assert parse_read(query) == wish


@pytest.mark.parametrize(
    ("query", "wish"),
    [
        ([], PageWish(20, None, True)),
        ([("limit", "100"), ("order", "asc"), ("after", "msg_1")], PageWish(100, "msg_1", False)),
    ],
)
def test_page(query: list[tuple[str, str]], wish: PageWish) -> None:
    assert parse_page(query) == wish


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ([("limit", "0")], "limit"),
        ([("limit", "101")], "limit"),
        ([("limit", "²")], "limit"),
        ([("limit", "1e1")], "limit"),
        ([("limit", "1"), ("limit", "2")], "limit"),
        ([("order", "up")], "order"),
        ([("before", "x")], "before"),
        ([("include", "x")], "include"),
    ],
)
def test_page_refuses_by_name(query: list[tuple[str, str]], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_page(query)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ([("stream", "yes")], "stream"),
        ([("starting_after", "3")], "starting_after"),
        ([("stream", "true"), ("starting_after", "-1")], "starting_after"),
        ([("limit", "3")], "limit"),
    ],
)
def test_read_refuses_by_name(query: list[tuple[str, str]], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_read(query)
    assert caught.value.param == param


def test_page_object_names_its_ends() -> None:
    page = json.loads(page_object([b'{"id":"a"}', b'{"id":"b"}'], more=True))
    assert page == {
        "object": "list",
        "data": [{"id": "a"}, {"id": "b"}],
        "first_id": "a",
        "last_id": "b",
        "has_more": True,
    }
    empty = json.loads(page_object([], more=False))
    assert (empty["data"], empty["first_id"], empty["last_id"]) == ([], None, None)


@pytest.mark.parametrize(
    ("param", "message", "own", "said"),
    [
        ("messages", "messages: too long", "input", "input: too long"),
        ("response_format", "response_format: no", "text.format", "text.format: no"),
        (
            "tools[3].function.parameters",
            "tools[3].function.parameters: no",
            "tools[3].parameters",
            "tools[3].parameters: no",
        ),
        ("max_tokens", "max_tokens is 5", "max_output_tokens", "max_output_tokens is 5"),
        ("messages", "The prompt is too long", "input", "The prompt is too long"),
        ("seed", "seed: no", "seed", "seed: no"),
        (None, "messages: x", None, "messages: x"),
    ],
)
def test_errors_name_the_fields_of_this_api(param: str | None, message: str, own: str | None, said: str) -> None:
    error: GatewayError = in_own_terms(InvalidRequest(message, param=param))
    assert (error.param, error.message) == (own, said)
