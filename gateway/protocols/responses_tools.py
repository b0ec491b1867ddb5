"""``tools`` and ``tool_choice`` in the shapes of the Responses API, which has a function's fields in the tool itself.

This server runs no tools of its own: the built-in ones (``web_search``, ``file_search``, ``computer_use_preview``,
``code_interpreter``, ``image_generation``, ``mcp``, ``local_shell`` …) and ``custom`` ones are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines.wire import Tool, ToolUse
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.protocols.options import read_boolean, shown
from gateway.protocols.tool_options import make_tool_use, read_tool, read_tool_list

__all__ = ["TOOL_FIELDS", "read_response_tools", "shown_tools"]

TOOL_FIELDS = ("type", "name", "description", "parameters", "strict")
_CHOICES = "'none', 'auto', 'required', or an object that names a function"


def read_response_tools(options: Mapping[str, Any]) -> ToolUse | None:
    """The tools and how they may be used, None without any. InvalidRequest names the field."""
    tools = [
        read_tool(_function(tool, f"tools[{i}]"), f"tools[{i}]")
        for i, tool in enumerate(read_tool_list(options.get("tools")))
    ]
    wanted = read_boolean(options, "parallel_tool_calls")
    choice = options.get("tool_choice")
    match choice:
        case None:
            return make_tool_use(tools, parallel=wanted is not False)
        case "none" | "auto" | "required":
            return make_tool_use(tools, choice=choice, parallel=wanted is not False)
        case {"type": "function", **_rest}:
            # Who names one function wants one call of it, unless they say otherwise.
            name = _named(choice, "tool_choice")
            return make_tool_use(tools, choice="required", name=name, parallel=wanted is True)
        case {"type": "allowed_tools", **_rest}:
            return _allowed(choice, tools, wanted is not False)
        case {"type": str(kind), **_rest}:
            message = (
                f"tool_choice.type is {shown(kind)}, which is not supported; it may be 'function' or 'allowed_tools'"
            )
            raise UnsupportedParameter(message, param="tool_choice.type")
    raise InvalidRequest(f"tool_choice is {shown(choice)}; it must be {_CHOICES}", param="tool_choice")


def shown_tools(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools as an answer shows them, with what was left out. ``options`` have been read."""
    return [
        {name: tool.get(name, False if name == "strict" else None) for name in TOOL_FIELDS} for tool in _listed(options)
    ]


def _listed(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = options.get("tools") or []
    return listed


def _allowed(choice: Mapping[str, Any], tools: Sequence[Tool], parallel: bool) -> ToolUse | None:
    """Some of the tools: the model is shown no others."""
    mode, listed = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        message = f"tool_choice.mode is {shown(mode)}; it must be auto or required"
        raise InvalidRequest(message, param="tool_choice.mode")
    field = "tool_choice.tools"
    if not isinstance(listed, list) or not listed:
        raise InvalidRequest(f"{field} is {shown(listed)}; it must be an array of at least one tool", param=field)
    names = set()
    for i, item in enumerate(listed):
        if not isinstance(item, dict):
            message = f"{field}[{i}] is {shown(item)}; it must be an object that names a function"
            raise InvalidRequest(message, param=f"{field}[{i}]")
        name = _named(_function(item, f"{field}[{i}]"), f"{field}[{i}]")
        if name not in {tool.name for tool in tools}:
            raise InvalidRequest(f"{field} names {shown(name)}; it must be one of tools", param=field)
        names.add(name)
    return make_tool_use([tool for tool in tools if tool.name in names], choice=mode, parallel=parallel)


def _named(value: Mapping[str, Any], field: str) -> str:
    name = value.get("name")
    if not isinstance(name, str):
        message = f"{field}.name is {shown(name)}; it must be the name of one of tools"
        raise InvalidRequest(message, param=f"{field}.name")
    return name


def _function(tool: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A tool that is a function, with no field that asks for more than that."""
    kind = tool.get("type")
    if not isinstance(kind, str):
        raise InvalidRequest(f"{field}.type is {shown(kind)}; it must be 'function'", param=f"{field}.type")
    if kind != "function":
        message = (
            f"{field}.type is {shown(kind)}, which is not supported: this server runs no tools of its own; "
            "it must be 'function'"
        )
        raise UnsupportedParameter(message, param=f"{field}.type")
    for name, value in tool.items():
        if name not in TOOL_FIELDS and value is not None and value is not False:
            where = f"{field}.{name[:100]}"
            raise UnsupportedParameter(f"{where}: {shown(value)} is not supported", param=where)
    return tool
