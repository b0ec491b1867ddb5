"""``tools``, ``tool_choice`` and ``parallel_tool_calls`` in the shapes of OpenAI's chat.

Source: OpenAI's API reference, "Create chat completion".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines.wire import Tool, ToolUse
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.protocols.options import read_boolean, shown
from gateway.protocols.tool_options import make_tool_use, read_tool, read_tool_list

__all__ = ["TOOL_OPTIONS", "read_tools"]

TOOL_OPTIONS = frozenset({"parallel_tool_calls", "tool_choice", "tools"})
_CHOICES = "'none', 'auto', 'required', or an object that names a function"


def read_tools(options: Mapping[str, Any]) -> ToolUse | None:
    """The tools and how they may be used, None without any."""
    tools = [
        read_tool(_function(tool, f"tools[{i}]"), f"tools[{i}].function")
        for i, tool in enumerate(read_tool_list(options.get("tools")))
    ]
    wanted = read_boolean(options, "parallel_tool_calls")
    parallel = wanted is not False
    choice = options.get("tool_choice")
    match choice:
        case None:
            return make_tool_use(tools, parallel=parallel)
        case "none" | "auto" | "required":
            return make_tool_use(tools, choice=choice, parallel=parallel)
        case {"type": "function", **_rest}:
            # Who names one function wants one call of it, unless they say otherwise.
            name = _named(choice, "tool_choice")
            return make_tool_use(tools, choice="required", name=name, parallel=wanted is True)
        case {"type": "allowed_tools", **_rest}:
            return _allowed(choice.get("allowed_tools"), tools, parallel)
        case {"type": str(kind), **_rest}:
            message = (
                f"tool_choice.type is {shown(kind)}, which is not supported; it may be 'function' or 'allowed_tools'"
            )
            raise UnsupportedParameter(message, param="tool_choice.type")
    raise InvalidRequest(f"tool_choice is {shown(choice)}; it must be {_CHOICES}", param="tool_choice")


def _allowed(value: Any, tools: Sequence[Tool], parallel: bool) -> ToolUse | None:
    """Some of the tools: the model is shown no others."""
    field = "tool_choice.allowed_tools"
    if not isinstance(value, dict) or not isinstance(listed := value.get("tools"), list) or not listed:
        message = f"{field} is {shown(value)}; it must be an object with a mode and an array of tools"
        raise InvalidRequest(message, param=field)
    mode = value.get("mode")
    if mode not in ("auto", "required"):
        raise InvalidRequest(f"{field}.mode is {shown(mode)}; it must be auto or required", param=f"{field}.mode")
    names = [_named(_checked(item, f"{field}.tools[{i}]"), f"{field}.tools[{i}]") for i, item in enumerate(listed)]
    known = {tool.name for tool in tools}
    for name in names:
        if name not in known:
            raise InvalidRequest(f"{field}.tools names {shown(name)}; it must be one of tools", param=f"{field}.tools")
    chosen = [tool for tool in tools if tool.name in names]
    return make_tool_use(chosen, choice=mode, parallel=parallel)


def _checked(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be an object that names a function", param=field)
    return value


def _named(value: Mapping[str, Any], field: str) -> str:
    """The name in ``{"type": "function", "function": {"name": …}}``."""
    name = _function(value, field).get("name")
    if not isinstance(name, str):
        message = f"{field}.function.name is {shown(name)}; it must be the name of one of tools"
        raise InvalidRequest(message, param=f"{field}.function.name")
    return name


def _function(tool: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """The function of a tool, which is all that a tool may be."""
    kind = tool.get("type")
    if kind != "function":
        if not isinstance(kind, str):
            raise InvalidRequest(f"{field}.type is {shown(kind)}; it must be 'function'", param=f"{field}.type")
        message = f"{field}.type is {shown(kind)}, which is not supported; it must be 'function'"
        raise UnsupportedParameter(message, param=f"{field}.type")
    function = tool.get("function")
    if not isinstance(function, dict):
        message = f"{field}.function is {shown(function)}; it must be an object with a name"
        raise InvalidRequest(message, param=f"{field}.function")
    return function
