"""Tools of a chat: what is read, and what each mistake is answered with."""

from __future__ import annotations

from typing import Any

import pytest

from engines.wire import Tool, ToolUse
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.protocols.openai_tools import read_tools

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def function(name: str = "weather", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


TOOLS = [function(description="Looks out.", parameters=SCHEMA, strict=True), function("clock")]
READ = (Tool(name="weather", description="Looks out.", parameters=SCHEMA, strict=True), Tool(name="clock"))


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({}, None),
        ({"tools": []}, None),
        ({"tools": [], "tool_choice": "auto", "parallel_tool_calls": False}, None),
        ({"tool_choice": "none"}, None),
        ({"tools": TOOLS}, ToolUse(tools=READ)),
        ({"tools": TOOLS, "tool_choice": "none"}, ToolUse(tools=READ, choice="none")),
        ({"tools": TOOLS, "tool_choice": "required"}, ToolUse(tools=READ, choice="required")),
        ({"tools": TOOLS, "parallel_tool_calls": False}, ToolUse(tools=READ, parallel=False)),
        (
            {"tools": TOOLS, "tool_choice": function("clock")},
            ToolUse(tools=READ, choice="required", name="clock", parallel=False),
        ),
        (
            {"tools": TOOLS, "tool_choice": function("clock"), "parallel_tool_calls": True},
            ToolUse(tools=READ, choice="required", name="clock"),
        ),
        (
            {
                "tools": TOOLS,
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [function("clock")]},
                },
            },
            ToolUse(tools=READ[1:], choice="required"),
        ),
        ({"tools": [function("f", parameters={})]}, ToolUse(tools=(Tool(name="f", parameters={}),))),
    ],
)
def test_tools_and_choice_are_read(options: dict[str, Any], read: ToolUse | None) -> None:
    assert read_tools(options) == read


def allowed(**fields: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("clock")], **fields}}


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"tools": "weather"}, "tools", "at most 128"),
        ({"tools": [function(f"f{i}") for i in range(129)]}, "tools", "an array of 129"),
        ({"tools": ["weather"]}, "tools[0]", "'weather'"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type", "null"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "an object with a name"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].function", "an object with a name"),
        ({"tools": [function(""), *TOOLS]}, "tools[0].function.name", "1 to 64"),
        ({"tools": [*TOOLS, function("a b")]}, "tools[2].function.name", "'a b'"),
        ({"tools": [function("x\n")]}, "tools[0].function.name", "1 to 64"),
        ({"tools": [function("x" * 65)]}, "tools[0].function.name", "1 to 64"),
        ({"tools": [function(description=5)]}, "tools[0].function.description", "a string"),
        ({"tools": [function(strict="yes")]}, "tools[0].function.strict", "true or false"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters", "JSON Schema of an object"),
        ({"tools": [function(parameters={"type": "string"})]}, "tools[0].function.parameters.type", "'object'"),
        ({"tools": [*TOOLS, function("clock")]}, "tools", "'clock' twice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice", "'any'"),
        ({"tools": TOOLS, "tool_choice": 5}, "tool_choice", "'required'"),
        ({"tools": TOOLS, "tool_choice": {}}, "tool_choice", "an object"),
        ({"tools": TOOLS, "tool_choice": function("sun")}, "tool_choice", "names 'sun'"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function", "an object with a name"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": []}}},
            "tool_choice.function.name",
            "an array",
        ),
        ({"tool_choice": "required"}, "tool_choice", "tools must hold"),
        ({"tool_choice": function()}, "tool_choice", "one of tools"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls", "true or false"),
        ({"tools": TOOLS, "tool_choice": allowed(mode="none")}, "tool_choice.allowed_tools.mode", "auto or required"),
        ({"tools": TOOLS, "tool_choice": allowed(tools=[])}, "tool_choice.allowed_tools", "an array of tools"),
        ({"tools": TOOLS, "tool_choice": allowed(tools=["f"])}, "tool_choice.allowed_tools.tools[0]", "'f'"),
        (
            {"tools": TOOLS, "tool_choice": allowed(tools=[function("sun")])},
            "tool_choice.allowed_tools.tools",
            "names 'sun'",
        ),
    ],
)
def test_mistake_names_its_place_and_what_is_allowed(options: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_tools(options)
    assert caught.value.param == param
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "f"}}}, "tool_choice.type"),
        (
            {"tools": TOOLS, "tool_choice": allowed(tools=[{"type": "custom"}])},
            "tool_choice.allowed_tools.tools[0].type",
        ),
    ],
)
def test_other_kinds_of_tools_are_refused_by_name(options: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter, match="not supported") as caught:
        read_tools(options)
    assert caught.value.param == param
