"""Schemas without end."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from engines.text.constraints.productive import is_productive

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}


def rooted(**defs: Any) -> dict[str, Any]:
    return {"$ref": "#/$defs/node", "$defs": defs}


ENDLESS: dict[str, Any] = {
    "false": False,
    "a value that needs another": rooted(node=NODE),
    "a reference to itself": {"$ref": "#"},
    "two that need each other": rooted(
        node={"type": "object", "properties": {"a": {"$ref": "#/$defs/other"}}, "required": ["a"]},
        other={"type": "array", "items": {"$ref": "#/$defs/node"}, "minItems": 1},
    ),
    "every choice needs another": rooted(node={"anyOf": [NODE, {"type": ["object"], **NODE}]}),
    "one part of all": rooted(node={"allOf": [{"type": "object"}, NODE]}),
    "a leading item": rooted(node={"type": "array", "prefixItems": [True, {"$ref": "#/$defs/node"}], "minItems": 2}),
    "a required property that is not listed": {
        "type": "object",
        "additionalProperties": {"$ref": "#"},
        "required": ["a"],
    },
    "a required property of a pattern": {
        "type": "object",
        "patternProperties": {"^a": {"$ref": "#"}},
        "additionalProperties": False,
        "required": ["a"],
    },
    "some property": {"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1},
    "an anchor": {
        "$ref": "#node",
        "$defs": {"a": {"$anchor": "node", **NODE, "properties": {"next": {"$ref": "#node"}}}},
    },
    "its own address": {
        "$id": "https://example.com/a",
        **NODE,
        "properties": {"next": {"$ref": "https://example.com/a"}},
    },
    "an address with a pointer": {
        "$id": "https://example.com/a#",
        **NODE,
        "$ref": "https://example.com/a#/$defs/b",
        "$defs": {"b": {"$ref": "#/$defs/b"}},
    },
    "escaped names": {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"$ref": "#/$defs/a~1b%20c"}}},
}
FINITE: dict[str, Any] = {
    "true": True,
    "anything": {},
    "an optional next": rooted(node={**NODE, "required": []}),
    "a next that may be null": rooted(
        node={**NODE, "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
    ),
    "other types may match": rooted(node={**NODE, "type": ["object", "null"]}),
    "an empty array": rooted(node={"type": "array", "items": {"$ref": "#/$defs/node"}}),
    "enough leading items": rooted(
        node={"type": "array", "prefixItems": [True], "items": {"$ref": "#/$defs/node"}, "minItems": 1}
    ),
    "a chain of references": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/list/1"}, "list": [False, {"type": "null"}]},
    },
    "no property at all": {"type": "object", "additionalProperties": {"$ref": "#"}},
    "another property": {
        "type": "object",
        "properties": {"a": True},
        "additionalProperties": {"$ref": "#"},
        "minProperties": 1,
    },
    "one pattern of two": {
        "type": "object",
        "patternProperties": {"^a": {"$ref": "#"}, "b$": {"type": "null"}},
        "required": ["ab"],
    },
    "an anchor that is none": {"$ref": "#none"},
    "a reference that points nowhere": {"$ref": "#/$defs/none"},
    "another document": {"$ref": "https://example.com/schema.json"},
    "no schema at all": {"type": "object", "properties": 3, "required": "a", "$ref": 5},
}


@pytest.mark.parametrize("schema", ENDLESS.values(), ids=ENDLESS)
def test_schema_without_finite_values_is_found(schema: Any) -> None:
    assert not is_productive(schema)


@pytest.mark.parametrize("schema", FINITE.values(), ids=FINITE)
def test_schema_with_finite_values_is_left_alone(schema: Any) -> None:
    assert is_productive(schema)


def test_schema_too_deep_for_python_raises() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"allOf": [schema]}
    with pytest.raises(RecursionError):
        is_productive(schema)


def test_cost_grows_with_the_length_of_a_chain_and_not_its_square() -> None:
    def steps(length: int) -> int:
        chain: dict[str, Any] = {
            f"d{i}": {**NODE, "properties": {"next": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(length)
        }
        counted = 0

        def count(*_: Any) -> None:
            nonlocal counted
            counted += 1

        before = sys.getprofile()
        sys.setprofile(count)
        try:
            assert is_productive({"$ref": "#/$defs/d0", "$defs": chain | {f"d{length}": {"type": "null"}}})
        finally:
            sys.setprofile(before)
        return counted

    assert steps(200) < 3 * steps(100)
