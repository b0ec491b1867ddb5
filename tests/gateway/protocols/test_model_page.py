"""Pages of the list of models."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.protocols.model_page import ModelPage, parse_model_page

IDS = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("query", "listed", "more"),
    [
        ({}, "abcd", False),
        ({"limit": "1000", "beta": "true"}, "abcd", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "2", "after_id": "b"}, "cd", False),
        ({"limit": "1", "after_id": "b"}, "c", True),
        ({"after_id": "d"}, "", False),
        ({"before_id": "c"}, "ab", False),
        ({"before_id": "d", "limit": "2"}, "bc", True),
        ({"before_id": "a", "limit": "2"}, "", False),
    ],
)
def test_page_of_models(query: dict[str, str], listed: str, more: bool) -> None:
    page = parse_model_page(list(query.items()))
    assert page.of(IDS, IDS) == (list(listed), more)
    assert page.ignored == ()


def test_page_names_what_it_knows_nothing_of() -> None:
    assert parse_model_page([("order", "asc"), ("limit", "3"), ("a\nb", "")]) == ModelPage(3, ignored=("order",))


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ([("limit", "0")], "limit"),
        ([("limit", "1001")], "limit"),
        ([("limit", "x")], "limit"),
        ([("limit", "1"), ("limit", "2")], "limit"),
        ([("after_id", "z")], "after_id"),
        ([("before_id", "z")], "before_id"),
        ([("after_id", "a"), ("before_id", "b")], "before_id"),
    ],
)
def test_page_refuses_by_name(query: list[tuple[str, str]], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_model_page(query).of(IDS, IDS)
    assert caught.value.param == field
