"""Chat messages in OpenAI's shape to the messages a chat template reads.

Text parts are joined by a newline. ``developer`` is the newer name of ``system``, and templates know the older one. The role
``function`` and the field ``function_call``, which tools took the place of, are refused by name. An assistant's ``reasoning``, as
some servers call it, becomes ``reasoning_content``, which templates read. A tool's result gets the name of its function, which some
templates read and the request has only with the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engines.wire import ChatMessage
from gateway.errors import InvalidRequest, UnsupportedModality, UnsupportedParameter
from gateway.protocols.options import shown

__all__ = ["parse_messages"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_EXTRA = ("name", "tool_calls", "tool_call_id", "reasoning_content")
# Fields that clients send back from an earlier answer and that say nothing to a template.
_ECHOED = frozenset({"annotations", "audio", "refusal", "reasoning_details", "cache_control", "id"})
_FIELDS = frozenset({"role", "content", "function_call", "reasoning", *_EXTRA, *_ECHOED})
_PLAIN = frozenset({"role", "content"})
_MODALITIES = {
    "image_url": "images",
    "input_image": "images",
    "image": "images",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "files",
    "input_file": "files",
}


def parse_messages(value: Any) -> tuple[ChatMessage, ...]:
    """The ``messages`` field. InvalidRequest names the message and the field in it."""
    if value is None:
        raise InvalidRequest("messages is missing; it must be an array of messages", param="messages")
    if not isinstance(value, list) or not value:
        message = f"messages is {shown(value)}; it must be an array of at least one message"
        raise InvalidRequest(message, param="messages")
    return _with_named_results([_message(item, f"messages[{i}]") for i, item in enumerate(value)])


def _with_named_results(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The messages, each tool's result with the name of its function. InvalidRequest for one that belongs to no call before it."""
    called: dict[str, str] = {}  # a call's id → its function
    named = []
    for i, message in enumerate(messages):
        if message.role == "assistant":
            called |= {call["id"]: call["function"]["name"] for call in message.extra.get("tool_calls", ())}
        elif message.role == "tool":
            id = message.extra.get("tool_call_id")
            if id not in called:
                field = f"messages[{i}].tool_call_id"
                what = "is missing" if id is None else f"is {shown(id)}"
                text = f"{field} {what}; it must be the id of a tool call in an assistant's message before"
                raise InvalidRequest(text, param=field)
            message = msgspec.structs.replace(message, extra={"name": called[id], **message.extra})
        named.append(message)
    return tuple(named)


def _message(value: Any, field: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be an object", param=field)
    role, content = value.get("role"), value.get("content")
    if isinstance(content, str) and isinstance(role, str) and role in _ROLES and value.keys() <= _PLAIN:
        return ChatMessage(role=_ROLES[role], content=content)  # nothing else to look at, as in nearly all
    if role == "function" or value.get("function_call") is not None:
        where = f"{field}.role" if role == "function" else f"{field}.function_call"
        message = f"{where}: functions are not supported; use tool_calls and the role 'tool'"
        raise UnsupportedParameter(message, param=where)
    if not isinstance(role, str) or role not in _ROLES:
        message = f"{field}.role is {shown(role)}; it must be one of {', '.join(_ROLES)}"
        raise InvalidRequest(message, param=f"{field}.role")
    for name in value:
        if name not in _FIELDS and value[name] is not None:
            where = f"{field}.{name[:100]}"
            raise UnsupportedParameter(f"unknown parameter {where!r}", param=where)
    extra = _extra(value, field)
    may_be_empty = role == "assistant" and "tool_calls" in extra
    return ChatMessage(role=_ROLES[role], content=_content(value, field, may_be_empty), extra=extra)


def _content(message: Mapping[str, Any], field: str, may_be_empty: bool) -> str | None:
    content = message.get("content")
    if content is None and isinstance(message.get("refusal"), str):
        return str(message["refusal"])  # an earlier answer that declined: its text stands there
    field = f"{field}.content"
    if isinstance(content, str):
        return content
    if content is None and may_be_empty:
        return None
    if not isinstance(content, list) or not content:
        what = "is missing" if content is None else f"is {shown(content)}"
        raise InvalidRequest(f"{field} {what}; it must be a string or an array of content parts", param=field)
    return "\n".join(_part(part, f"{field}[{i}]") for i, part in enumerate(content))


def _part(part: Any, field: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{field} is {shown(part)}; it must be an object", param=field)
    kind = part.get("type")
    if isinstance(kind, str) and kind in _MODALITIES:
        message = f"{field} is of type {kind!r}: this server's text models cannot read {_MODALITIES[kind]}"
        raise UnsupportedModality(message, param=field)
    if kind not in ("text", "input_text", "refusal"):
        raise InvalidRequest(f"{field}.type is {shown(kind)}; it must be 'text'", param=f"{field}.type")
    name = "refusal" if kind == "refusal" else "text"
    text = part.get(name)
    if not isinstance(text, str):
        raise InvalidRequest(f"{field}.{name} is {shown(text)}; it must be a string", param=f"{field}.{name}")
    return text


def _extra(message: Mapping[str, Any], field: str) -> dict[str, Any]:
    for name in ("name", "tool_call_id", "reasoning_content", "reasoning"):
        if not isinstance(message.get(name), str | None):
            where = f"{field}.{name}"
            raise InvalidRequest(f"{where} is {shown(message[name])}; it must be a string", param=where)
    extra = {name: message[name] for name in _EXTRA if message.get(name) is not None}
    if message.get("reasoning") is not None:
        extra.setdefault("reasoning_content", message["reasoning"])
    if "tool_calls" in extra:
        _check_tool_calls(extra["tool_calls"], f"{field}.tool_calls")
        if not extra["tool_calls"]:
            del extra["tool_calls"]
    return extra


def _check_tool_calls(value: Any, field: str) -> None:
    if not isinstance(value, list):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be an array of tool calls", param=field)
    for i, call in enumerate(value):
        _check_tool_call(call, f"{field}[{i}]")


def _check_tool_call(call: Any, field: str) -> None:
    if not isinstance(call, dict):
        raise InvalidRequest(f"{field} is {shown(call)}; it must be an object", param=field)
    kind = call.get("type")
    if isinstance(kind, str) and kind != "function":
        where = f"{field}.type"
        raise UnsupportedParameter(
            f"{where} is {shown(kind)}, which is not supported; it must be 'function'", param=where
        )
    function = call.get("function")
    if not isinstance(function, dict):
        message = f"{field}.function is {shown(function)}; it must be an object with a name and arguments"
        raise InvalidRequest(message, param=f"{field}.function")
    # Arguments need not be JSON: a model's broken call is sent back as it was.
    for where, text in (
        (f"{field}.id", call.get("id")),
        (f"{field}.function.name", function.get("name")),
        (f"{field}.function.arguments", function.get("arguments")),
    ):
        if not isinstance(text, str) or not (text or where.endswith("arguments")):
            raise InvalidRequest(f"{where} is {shown(text)}; it must be a string", param=where)
