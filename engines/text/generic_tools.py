"""Tools for models whose templates know none: what is said to the model, and how calls and results are shown to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from engines.text.reasoning import variables_read
from engines.wire import Tool

__all__ = ["generic_messages", "instructions", "knows_tools", "tools_variable"]


# Most templates say ``tools``; Granite 4 says the second, SmolLM3 the third.
_VARIABLES = ("tools", "available_tools", "xml_tools")


def tools_variable(template: str | None) -> str | None:
    """The variable by which a chat template wants the tools; None for one that does not show tools to the model."""
    read = variables_read(template)
    return next((name for name in _VARIABLES if name in read), None)


def knows_tools(template: str | None) -> bool:
    """Whether a chat template shows tools to the model."""
    return tools_variable(template) is not None


def instructions(tools: Sequence[Tool], *, required: bool = False, parallel: bool = True) -> str:
    """What the model is told of its tools, to stand in the system message."""
    listed = "\n".join(json.dumps(_described(tool), ensure_ascii=False) for tool in tools)
    when = "Call at least one of them now." if required else "Call one when it helps with what is asked."
    several = "For several calls write several such blocks." if parallel else "Make one call at a time."
    return (
        f"You can call functions. {when} These are available, one a line, each with the JSON Schema of its arguments:\n"
        f"{listed}\n\n"
        "To call one, write a block like this, with the function's name and its arguments as JSON, and nothing after it:\n"
        '<tool_call>\n{"name": "FUNCTION", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>\n'
        f"{several} The results come back in <tool_response> blocks. Never make up a result."
    )


def _described(tool: Tool) -> dict[str, Any]:
    described: dict[str, Any] = {"name": tool.name}
    if tool.description:
        described["description"] = tool.description
    described["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return described


def generic_messages(messages: Sequence[Mapping[str, Any]], system: str) -> list[dict[str, Any]]:
    """The conversation as a template can show it that knows neither tools nor their roles.

    ``system`` (see :func:`instructions`) joins the system message, or comes first where there is none. An assistant's calls are
    written into its content in the generic form, and results become user messages, those in a row one message, since many
    templates want user and assistant to take turns.
    """
    result: list[dict[str, Any]] = []
    told = False
    for message in messages:
        role = message.get("role")
        if role in ("system", "developer") and not told:
            result.append({**message, "content": "\n\n".join(filter(None, [_text(message), system]))})
            told = True
        elif role == "tool":
            block = f"<tool_response>\n{_text(message)}\n</tool_response>"
            if result and result[-1].get("_results"):
                result[-1]["content"] += "\n" + block
            else:
                result.append({"role": "user", "content": block, "_results": True})
        elif role == "assistant" and message.get("tool_calls"):
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            blocks = [_call(call) for call in message["tool_calls"]]
            result.append({**rest, "content": "\n".join(filter(None, [_text(message), *blocks]))})
        else:
            result.append(dict(message))
    for message in result:
        message.pop("_results", None)
    return result if told or not system else [{"role": "system", "content": system}, *result]


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        with suppress(ValueError):  # the model's own broken JSON is shown to it as it was
            arguments = json.loads(arguments)
    body = json.dumps({"name": function.get("name"), "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"
