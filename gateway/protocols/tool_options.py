"""Tools of a request, in any protocol: what a function may look like, and how they may be used."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from engines.wire import Tool, ToolUse
from gateway.errors import InvalidRequest
from gateway.protocols.options import read_boolean, shown

__all__ = ["MAX_TOOLS", "TOOL_NAME", "make_tool_use", "read_tool", "read_tool_list"]

MAX_TOOLS = 128
TOOL_NAME = r"^[A-Za-z0-9_-]{1,64}$"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_tool_list(value: Any, field: str = "tools") -> list[Mapping[str, Any]]:
    """Up to 128 objects, none where absent."""
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        message = f"{field} is {shown(value)}; it must be an array of at most {MAX_TOOLS} tools"
        raise InvalidRequest(message, param=field)
    for i, tool in enumerate(value):
        if not isinstance(tool, dict):
            raise InvalidRequest(f"{field}[{i}] is {shown(tool)}; it must be an object", param=f"{field}[{i}]")
    return value


def read_tool(function: Mapping[str, Any], field: str, schema: str = "parameters") -> Tool:
    """A function's name, description, schema of arguments and strictness. ``schema`` is the name of its schema's field."""
    name, description = function.get("name"), function.get("description")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        message = f"{field}.name is {shown(name)}; it must be 1 to 64 letters, digits, underscores or hyphens"
        raise InvalidRequest(message, param=f"{field}.name")
    if description is not None and not isinstance(description, str):
        message = f"{field}.description is {shown(description)}; it must be a string"
        raise InvalidRequest(message, param=f"{field}.description")
    strict = read_boolean({f"{field}.strict": function.get("strict")}, f"{field}.strict")
    return Tool(
        name=name,
        description=description,
        parameters=_parameters(function.get(schema), f"{field}.{schema}"),
        strict=strict or False,
    )


def _parameters(value: Any, field: str) -> dict[str, Any] | None:
    """Arguments are an object, so their schema is of one. What else it says is judged before anything is generated."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be a JSON Schema of an object", param=field)
    kind = value.get("type", "object")
    if kind != "object":
        raise InvalidRequest(f"{field}.type is {shown(kind)}; it must be 'object'", param=f"{field}.type")
    return value


def make_tool_use(
    tools: Sequence[Tool],
    *,
    choice: Literal["auto", "none", "required"] = "auto",
    name: str | None = None,
    parallel: bool = True,
    choice_field: str = "tool_choice",
) -> ToolUse | None:
    """How these may be used; None without any. ``name``: the one that must be called.

    InvalidRequest for two of one name, and for a choice that they do not leave: ``choice_field`` is at fault.
    """
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InvalidRequest(f"tools holds {twice!r} twice; each needs a name of its own", param="tools")
    if name is not None and name not in names:
        message = f"{choice_field} names {shown(name)}; it must be one of tools"
        raise InvalidRequest(message, param=choice_field)
    if not tools:
        if choice == "required":
            raise InvalidRequest(f"{choice_field} requires a call; tools must hold a function", param=choice_field)
        return None
    return ToolUse(tools=tuple(tools), choice=choice, name=name, parallel=parallel)
