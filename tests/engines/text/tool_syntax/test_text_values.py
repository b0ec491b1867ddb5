"""Arguments that are text: what they are by the function's schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.text.tool_syntax.schemas import arguments_of, types_of
from engines.text.tool_syntax.text_values import value_of
from engines.wire import Tool


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        ("5", {"type": "integer"}, 5),
        ("5.0", {"type": "integer"}, 5),
        ("5.5", {"type": "integer"}, "5.5"),
        ("five", {"type": "integer"}, "five"),
        ("+1e3", {"type": "number"}, 1000),
        ("1e999", {"type": "number"}, "1e999"),
        ("True", {"type": "boolean"}, True),
        ("yes", {"type": "boolean"}, "yes"),
        ("None", {"type": ["string", "null"]}, None),
        ("null", {"type": ["string", "null"]}, None),
        ("a", {"type": ["string", "null"]}, "a"),
        ('"a"', {"type": ["string", "null"]}, "a"),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("[1, 2", {"type": "array"}, "[1, 2"),
        ('{"a": 1}', {"anyOf": [{"type": "object"}, {"type": "null"}]}, {"a": 1}),
        ('{"a": 1}', None, {"a": 1}),
        ("a", None, "a"),
        ("NaN", None, "NaN"),
        ("null", None, None),
        (" x\n", {"type": "string"}, " x\n"),
        ("a", {"enum": ["a", "b"]}, "a"),
        ("1", {"enum": [1, 2]}, 1),
        ("true", {"const": "true"}, "true"),
        ("7", {"$ref": "#/$defs/N", "$defs": {"N": {"type": "integer"}}}, 7),
        ("[" * 20000, None, "[" * 20000),
    ],
)
def test_value_by_schema(text: str, schema: dict[str, Any] | None, value: Any) -> None:
    assert json.loads(value_of(text, schema)) == value


@given(text=st.text(), kind=st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array", "x"]))
def test_any_text_is_some_json(text: str, kind: str) -> None:
    json.loads(value_of(text, {"type": kind}))
    json.loads(value_of(text, {"type": [kind, "string"]}))
    assert json.loads(value_of(text, {"type": "string"})) == text


def test_references_that_go_in_circles_end() -> None:
    assert types_of({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}) == frozenset()


def test_choices_of_references_that_lead_round_are_each_read_once() -> None:
    round_trip = {"anyOf": [{"$ref": "#/$defs/A"}] * 50}
    assert types_of({**round_trip, "$defs": {"A": {**round_trip, "enum": [1, "a"]}}}) == {"integer", "string"}


def test_types_are_unknown_where_too_many_schemas_lead_to_them() -> None:
    chain = {f"A{i}": {"$ref": f"#/$defs/A{i + 1}"} for i in range(1000)} | {"A1000": {"type": "string"}}
    assert types_of({"$ref": "#/$defs/A990", "$defs": chain}) == {"string"}
    assert types_of({"$ref": "#/$defs/A0", "$defs": chain}) == frozenset()


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object"},
        {"type": "object", "properties": {}, "additionalProperties": True},
        {"properties": {"a": {}}, "anyOf": [{}]},
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {}}, "required": 5},
        {"type": "array"},
    ],
)
def test_schemas_that_do_not_say_it_argument_by_argument(parameters: dict[str, Any]) -> None:
    assert arguments_of(Tool(name="f", parameters=parameters)) is None


def test_arguments_have_their_definitions() -> None:
    definitions = {"A": {"type": "string"}}
    parameters = {"properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["b"], "$defs": definitions}
    found = arguments_of(Tool(name="f", parameters=parameters))
    assert found is not None
    assert [(each.key, each.required) for each in found] == [("a", False), ("b", True)]
    assert found[0].schema == {"$ref": "#/$defs/A", "$defs": definitions}
    assert types_of(found[0].schema) == {"string"}
