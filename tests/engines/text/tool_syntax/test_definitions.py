"""Definitions go where they are needed: a schema's arguments each with those of all would be the product of both."""

from __future__ import annotations

from typing import Any

import pytest

from engines.errors import InvalidField
from engines.text.tool_syntax import SYNTAXES
from engines.text.tool_syntax.definitions import only_needed
from engines.text.tool_syntax.lark import LONGEST
from engines.text.tool_syntax.syntax import ToolSyntax
from engines.wire import Tool

A, B, C = ({"type": kind} for kind in ("string", "integer", "null"))


@pytest.mark.parametrize(
    ("schema", "needed"),
    [
        ({"type": "string"}, {"type": "string"}),
        ({"$ref": "#/$defs/a", "$defs": {"a": A, "b": B}}, {"$ref": "#/$defs/a", "$defs": {"a": A}}),
        (
            {"$ref": "#/definitions/a/items", "definitions": {"a": {"items": {"$ref": "#/$defs/b"}}}, "$defs": {"b": B, "c": C}},
            {"$ref": "#/definitions/a/items", "definitions": {"a": {"items": {"$ref": "#/$defs/b"}}}, "$defs": {"b": B}},
        ),
        ({"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": A, "b": B}}, {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": A}}),
        ({"$ref": "#/$defs/none", "$defs": {"a": A}}, {"$ref": "#/$defs/none"}),
        ({"properties": {"a": {"$ref": "#"}}, "$defs": {"a": A}}, {"properties": {"a": {"$ref": "#"}}, "$defs": {"a": A}}),
    ],
)  # fmt: skip
def test_definitions_that_nothing_leads_to_are_left_out(schema: dict[str, Any], needed: dict[str, Any]) -> None:
    assert only_needed(schema) == needed


def _tool(arguments: int) -> Tool:
    """Each argument with a definition of its own."""
    properties = {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(arguments)}
    definitions = {f"d{i}": {"type": "array", "items": {"type": "null"}} for i in range(arguments)}
    return Tool(name="f", parameters={"type": "object", "properties": properties, "$defs": definitions})


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
def test_grammar_grows_with_arguments_and_definitions_and_not_their_product(syntax: ToolSyntax) -> None:
    few, many = (len(syntax.grammar([_tool(count)], parallel=True, special={}) or "") for count in (30, 120))
    assert many < 6 * few


@pytest.mark.parametrize("syntax", SYNTAXES, ids=lambda syntax: syntax.name)
def test_schemas_that_are_too_long_are_refused_before_a_grammar_is_made_of_them(syntax: ToolSyntax) -> None:
    for tool in (_tool(9000), Tool(name="f", parameters={"description": "x" * LONGEST})):
        with pytest.raises(InvalidField, match=str(LONGEST)) as caught:
            syntax.grammar([tool], parallel=True, special={})
        assert caught.value.param == "tools"
