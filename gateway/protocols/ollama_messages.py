"""Messages in Ollama's shape to the messages a chat template reads.

==========================  ==========================================================================================
in the request              in the conversation
==========================  ==========================================================================================
``thinking``                ``reasoning_content``
``tool_calls``              the same, ``arguments`` as JSON text; a call without an id gets one
a message of ``tool``       its ``tool_name`` as ``name``; the id of the call that it answers: ``tool_call_id``, else that of the
                            first call of this name that has no answer, else of the first that has none
==========================  ==========================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engines.wire import ChatMessage
from gateway.errors import InvalidRequest, UnsupportedModality, UnsupportedParameter
from gateway.protocols.options import shown

__all__ = ["FIELDS", "ROLES", "check_images", "parse_messages"]

ROLES = ("system", "user", "assistant", "tool")
FIELDS = frozenset({"role", "content", "images", "name", "thinking", "tool_call_id", "tool_calls", "tool_name"})
_TEXTS = ("name", "thinking", "tool_call_id", "tool_name")
_CALL = frozenset({"function", "id", "index", "type"})
_FUNCTION = frozenset({"arguments", "description", "index", "name"})


def parse_messages(value: Any) -> tuple[ChatMessage, ...]:
    """The ``messages`` field; none where it is absent. InvalidRequest names the message and the field in it."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidRequest(f"messages is {shown(value)}; it must be an array of messages", param="messages")
    calls = _Calls()
    return tuple(_message(item, f"messages[{i}]", calls) for i, item in enumerate(value))


def check_images(value: Any, field: str) -> None:
    """UnsupportedModality for any."""
    if value is None or value == []:
        return
    if not isinstance(value, list):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be an array", param=field)
    raise UnsupportedModality(f"{field}: this server's text models cannot read images", param=field)


class _Calls:
    """The calls of a conversation, as far as it has been read."""

    def __init__(self) -> None:
        self._count = 0
        self._open: dict[str, str] = {}  # id → function, of those that have no answer, in order

    def add(self, id: str | None, name: str) -> str:
        """The call's id."""
        # Nine letters and digits: what the templates of Mistral's models insist on.
        id = f"call{self._count:05}" if id is None else id
        self._count += 1
        self._open[id] = name
        return id

    def answered(self, id: str | None, name: str | None) -> tuple[str | None, str | None]:
        """Id and function of the call that a result answers, as far as they are known."""
        if id is None:
            named = [call for call, function in self._open.items() if name in (None, function)]
            id = next(iter(named or self._open), None)
        known = None if id is None else self._open.pop(id, None)
        return id, name or known


def _message(value: Any, field: str, calls: _Calls) -> ChatMessage:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be an object", param=field)
    role = value.get("role")
    if role not in ROLES:
        message = f"{field}.role is {shown(role)}; it must be one of {', '.join(ROLES)}"
        raise InvalidRequest(message, param=f"{field}.role")
    _check_names(value, FIELDS, field)
    check_images(value.get("images"), f"{field}.images")
    content = value.get("content")
    if not isinstance(content, str | None):
        raise InvalidRequest(f"{field}.content is {shown(content)}; it must be a string", param=f"{field}.content")
    for text in _TEXTS:
        if not isinstance(value.get(text), str | None):
            where = f"{field}.{text}"
            raise InvalidRequest(f"{where} is {shown(value[text])}; it must be a string", param=where)
    extra: dict[str, Any] = {}
    if value.get("thinking"):
        extra["reasoning_content"] = value["thinking"]
    if made := _tool_calls(value.get("tool_calls"), f"{field}.tool_calls", calls):
        extra["tool_calls"] = made
    name = value.get("name")
    if role == "tool":
        id, name = calls.answered(value.get("tool_call_id"), value.get("tool_name") or name)
        extra |= {} if id is None else {"tool_call_id": id}
    extra |= {} if name is None else {"name": name}
    return ChatMessage(role=role, content=content or ("" if not made else None), extra=extra)


def _tool_calls(value: Any, field: str, calls: _Calls) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be an array of tool calls", param=field)
    return [_tool_call(call, f"{field}[{i}]", calls) for i, call in enumerate(value)]


def _tool_call(call: Any, field: str, calls: _Calls) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        message = f"{field} must be an object with a function: its name and its arguments"
        raise InvalidRequest(message, param=field)
    _check_names(call, _CALL, field)
    _check_names(function, _FUNCTION, f"{field}.function")
    id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    if not isinstance(id, str | None):
        raise InvalidRequest(f"{field}.id is {shown(id)}; it must be a string", param=f"{field}.id")
    if not isinstance(name, str) or not name:
        where = f"{field}.function.name"
        raise InvalidRequest(f"{where} is {shown(name)}; it must be a string of at least one character", param=where)
    if not isinstance(arguments, dict | None):
        where = f"{field}.function.arguments"
        raise InvalidRequest(f"{where} is {shown(arguments)}; it must be an object", param=where)
    text = json.dumps(arguments or {}, ensure_ascii=False)
    return {"id": calls.add(id or None, name), "type": "function", "function": {"name": name, "arguments": text}}


def _check_names(value: Mapping[str, Any], known: frozenset[str], field: str) -> None:
    for name in value:
        if name not in known and value[name] is not None:
            where = f"{field}.{name[:100]}"
            raise UnsupportedParameter(f"unknown parameter {where!r}", param=where)
