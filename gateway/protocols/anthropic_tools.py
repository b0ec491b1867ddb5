"""``tools`` and ``tool_choice`` in Anthropic's shape.

Tools are functions that the client runs, each with a schema of its own. Those that Anthropic's servers run, or whose schemas only
its models know (``web_search_20250305``, ``bash_20250124``, …), are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engines.wire import Tool, ToolUse
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.protocols.anthropic_blocks import check_fields
from gateway.protocols.options import read_boolean, shown
from gateway.protocols.tool_options import make_tool_use

__all__ = ["CHOICES", "MAX_TOOLS", "TOOL_HINTS", "TOOL_NAME", "TOOL_READ", "read_tools"]

MAX_TOOLS = 1024
TOOL_NAME = r"^[A-Za-z0-9_-]{1,128}$"
CHOICES = ("auto", "any", "tool", "none")
TOOL_READ = frozenset({"type", "name", "description", "input_schema", "strict", "defer_loading", "allowed_callers"})
TOOL_HINTS = frozenset({"cache_control", "eager_input_streaming", "input_examples"})

_NAME = re.compile(TOOL_NAME.removesuffix("$") + r"\Z")


def read_tools(options: Mapping[str, Any], referenced: frozenset[str], hints: set[str]) -> ToolUse | None:
    """The tools that the model is shown and how it may use them, None without any.

    A tool whose loading is deferred is shown once a tool's result has referred to it by name: ``referenced``.
    """
    value = options.get("tools")
    if value is not None and (not isinstance(value, list) or len(value) > MAX_TOOLS):
        message = f"tools is {shown(value)}; it must be an array of at most {MAX_TOOLS} tools"
        raise InvalidRequest(message, param="tools")
    tools = [_tool(tool, f"tools[{i}]", hints) for i, tool in enumerate(value or ())]
    kept = [tool for tool, deferred in tools if not deferred or tool.name in referenced]
    choice = options.get("tool_choice")
    if choice is None:
        return make_tool_use(kept)
    kind = choice.get("type") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or kind not in CHOICES:
        field, value = ("tool_choice.type", kind) if isinstance(choice, dict) else ("tool_choice", choice)
        allowed = f"one of {', '.join(CHOICES)}" if isinstance(choice, dict) else "an object with a type"
        raise InvalidRequest(f"{field} is {shown(value)}; it must be {allowed}", param=field)
    check_fields(choice, "tool_choice", frozenset({"type", "name", "disable_parallel_tool_use"}), frozenset(), hints)
    field = "tool_choice.disable_parallel_tool_use"
    disabled = read_boolean({field: choice.get("disable_parallel_tool_use")}, field)
    parallel = disabled is not True
    name = choice.get("name")
    if (kind == "tool") != isinstance(name, str):
        allowed = "the name of one of tools" if kind == "tool" else f"absent beside the type {kind!r}"
        raise InvalidRequest(f"tool_choice.name is {shown(name)}; it must be {allowed}", param="tool_choice.name")
    match kind:
        case "tool":
            # Who names one function wants one call of it, unless they say otherwise.
            return make_tool_use(
                kept, choice="required", name=name, parallel=disabled is False, choice_field="tool_choice.name"
            )
        case "any":
            return make_tool_use(kept, choice="required", parallel=parallel)
        case "none":
            return make_tool_use(kept, choice="none", parallel=parallel)
    return make_tool_use(kept, parallel=parallel)


def _tool(value: Any, field: str, hints: set[str]) -> tuple[Tool, bool]:
    """A tool, and whether its loading is deferred."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be an object", param=field)
    kind = value.get("type")
    if kind is not None and kind != "custom":
        if not isinstance(kind, str):
            raise InvalidRequest(f"{field}.type is {shown(kind)}; it must be 'custom'", param=f"{field}.type")
        message = (
            f"{field}.type is {shown(kind)}, which is not supported: this server runs no tools; it must be 'custom'"
        )
        raise UnsupportedParameter(message, param=f"{field}.type")
    check_fields(value, field, TOOL_READ, TOOL_HINTS, hints)
    name, description, schema = value.get("name"), value.get("description"), value.get("input_schema")
    if not isinstance(name, str) or _NAME.match(name) is None:
        message = f"{field}.name is {shown(name)}; it must be 1 to 128 letters, digits, underscores or hyphens"
        raise InvalidRequest(message, param=f"{field}.name")
    if not isinstance(description, str | None):
        message = f"{field}.description is {shown(description)}; it must be a string"
        raise InvalidRequest(message, param=f"{field}.description")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        what = "is missing" if schema is None else f"is {shown(schema)}"
        message = f"{field}.input_schema {what}; it must be a JSON Schema of an object"
        raise InvalidRequest(message, param=f"{field}.input_schema")
    _check_callers(value.get("allowed_callers"), f"{field}.allowed_callers")
    strict = read_boolean({f"{field}.strict": value.get("strict")}, f"{field}.strict") or False
    deferred = read_boolean({f"{field}.defer_loading": value.get("defer_loading")}, f"{field}.defer_loading") or False
    return Tool(name=name, description=description, parameters=schema, strict=strict), deferred


def _check_callers(value: Any, field: str) -> None:
    """A tool that only code on Anthropic's servers may call is of no use here."""
    if value is None:
        return
    if not isinstance(value, list):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be an array of callers", param=field)
    if "direct" not in value:
        message = f"{field} leaves out 'direct', which is not supported: the model calls tools itself"
        raise UnsupportedParameter(message, param=field)
