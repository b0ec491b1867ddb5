"""Tools for templates that know none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engines.text.generic_tools import generic_messages, instructions, knows_tools, tools_variable
from engines.text.tool_syntax import GENERIC
from tests.engines.text.tool_syntax.helpers_golden import TOOLS, read


def called(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_instructions_name_every_tool_with_its_schema() -> None:
    text = instructions(TOOLS)
    listed = [json.loads(line) for line in text.splitlines() if line.startswith('{"name"') and "FUNCTION" not in line]
    assert [each["name"] for each in listed] == [tool.name for tool in TOOLS]
    assert listed[0]["parameters"] == TOOLS[0].parameters
    assert listed[0]["description"] == "The weather of a city"
    assert listed[2] == {"name": "ping", "parameters": {"type": "object", "properties": {}}}


def test_instructions_show_the_form_that_is_read() -> None:
    text = instructions(TOOLS)
    block = text[text.index("<tool_call>") : text.index("</tool_call>") + len("</tool_call>")]
    assert read(block, GENERIC).parsed == [("FUNCTION", {"ARGUMENT": "VALUE"})]


def test_instructions_say_what_is_wanted() -> None:
    assert instructions(TOOLS, required=True) != instructions(TOOLS)
    assert "one call at a time" in instructions(TOOLS, parallel=False)


@pytest.mark.parametrize(
    ("template", "knows"),
    [
        ("{% if tools %}{{ tools | tojson }}{% endif %}", True),
        ("{%- for tool in tools -%}", True),
        ("{{ message['tools'] }}", False),
        ("{{ message.tools }}", False),
        ("You have no tools. {{ 'tools' }}", False),
        (None, False),
    ],
)
def test_a_template_knows_tools_if_it_reads_them(template: str | None, knows: bool) -> None:
    assert knows_tools(template) is knows


def test_templates_name_their_tools_differently() -> None:
    assert tools_variable("{% set tools = available_tools %}{{ tools }}") == "available_tools"
    assert tools_variable("{% if xml_tools %}") == "xml_tools"
    assert tools_variable("{% set tools = custom_tools %}{% if not tools is defined %}{% endif %}") == "tools"


def test_messages_begin_with_what_the_model_is_told() -> None:
    hello = {"role": "user", "content": "Hello"}
    assert generic_messages([hello], "TOLD") == [{"role": "system", "content": "TOLD"}, hello]
    system = {"role": "system", "content": "Be brief."}
    assert generic_messages([system, hello], "TOLD") == [{"role": "system", "content": "Be brief.\n\nTOLD"}, hello]


def test_calls_and_results_are_shown_in_the_generic_form() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [called("weather", '{"city": "Oslo"}'), called("ping", {})]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": "pong"},
        {"role": "assistant", "content": "It rains."},
    ]
    shown = generic_messages(messages, "TOLD")
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "user", "assistant"]
    assert read(shown[2]["content"], GENERIC).parsed == [("weather", {"city": "Oslo"}), ("ping", {})]
    assert "tool_calls" not in shown[2]
    assert shown[3] == {
        "role": "user",
        "content": "<tool_response>\nrain\n</tool_response>\n<tool_response>\npong\n</tool_response>",
    }
    assert messages[2]["role"] == "tool"  # what was given is left as it was


def test_broken_arguments_are_shown_as_they_were() -> None:
    shown = generic_messages([{"role": "assistant", "content": None, "tool_calls": [called("f", "{oops")]}], "TOLD")
    assert '"arguments": "{oops"' in shown[1]["content"]
