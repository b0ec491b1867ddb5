"""Literals of Python, as arguments."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.text.tool_syntax.helpers_golden import read, syntax

LFM2 = syntax("lfm2")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def calls_of(arguments: str, pieces: int | None = None) -> list[tuple[str, dict[str, Any]]]:
    text = f"<|tool_call_start|>[f({arguments})]<|tool_call_end|>"
    return read(text, LFM2, pieces=None if pieces is None else list(text)).parsed


@given(value=VALUES)
def test_any_literal_is_read_as_python_wrote_it(value: Any) -> None:
    assert calls_of(f"a={value!r}") == [("f", {"a": value})]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"""three " quotes"""', 'three " quotes'),
        (r'"a\n\t\\ \" \' \d \x41 \u00e9 \U0001F327 \xZ"', "a\n\t\\ \" ' \\d A é 🌧 \\xZ"),
        ('"a\\\nb"', "ab"),
        (r'"\ud83c\udf27"', "🌧"),
        (r'"\ud83c"', "\ufffd"),
        ("true", True),
        ("[null, false,]", [None, False]),
        ("(1, 2)", [1, 2]),
        ("{'a': 1, 2: 'b'}", {"a": 1, "2": "b"}),
        ("0x1F", 31),
        ("007", 7),
        ("1_000", 1000),
        ("-.5", -0.5),
        ('""', ""),
    ],
)
def test_literal(text: str, value: Any) -> None:
    for pieces in (None, 1):
        assert calls_of(f"a = {text} , b=1", pieces) == [("f", {"a": value, "b": 1})]


@pytest.mark.parametrize(
    "arguments", ["a", "a=", "a=b", "a=nan", "a=1e999", "=1", "a=f()", "a=[1", "a=1 b=2", "a=" + "[" * 60]
)
def test_what_is_no_literal_is_no_call(arguments: str) -> None:
    assert calls_of(arguments) == []


def test_built_in_tools_of_llama() -> None:
    text = '<|python_tag|>brave_search.call(query="rain in Oslo")'
    assert read(text, syntax("llama3")).parsed == [("brave_search", {"query": "rain in Oslo"})]


def test_a_printed_call() -> None:
    text = '```tool_code\nprint(weather(city="Oslo"))\n```'
    assert read(text, syntax("gemma3")).parsed == [("weather", {"city": "Oslo"})]
