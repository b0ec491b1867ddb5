"""What is whole of JSON that broke off."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocols.partial_json import whole_part


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a": 1, "b": "x', {"a": 1, "b": "x"}),
        ('{"a": 1, "b', {"a": 1}),
        ('{"a": 1, "b":', {"a": 1}),
        ('{"a": 1, "b": tr', {"a": 1}),
        ('{"a": [1, {"b": 2', {"a": [1, {"b": 2}]}),
        ('{"a": [1, {"b', {"a": [1, {}]}),
        ('{"a": "say \\"x', {"a": 'say "x'}),
        ('{"a": 1, "b": "x\\', {"a": 1}),
        ('{"a": 1, "b": "\\u00', {"a": 1}),
        ('{"a": "{[,", "b": 2', {"a": "{[,", "b": 2}),
        ("{", {}),
        ('{"a', {}),
        ("", None),
        ("no", None),
        ('{"a" 1, "b" 2, "c" 3, "d" 4, "e" 5, "f" 6', None),
        ("[" * 100_000, None),
    ],
)
def test_whole_part_leaves_out_what_is_unfinished(text: str, value: Any) -> None:
    assert whole_part(text) == value


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4), st.data())
def test_whole_part_of_an_object_cut_anywhere_is_an_object(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value)
    assert whole_part(text) == value
    part = whole_part(text[: data.draw(st.integers(1, len(text)))])
    assert isinstance(part, dict)
    assert list(part) == list(value)[: len(part)] or len(part) == 0
