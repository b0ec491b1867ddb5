"""Messages and system prompt in Anthropic's shape to the messages a chat template reads.

=========================  ======================================================================================
in the request             in the conversation
=========================  ======================================================================================
``system``                 a first message of the role ``system``
a user's blocks            first its tool results, each a message of the role ``tool``, then the texts as one message
an assistant's blocks      one message: its texts, thinking as ``reasoning_content``, calls as ``tool_calls``
a message of ``system``    the same, where it stands
=========================  ======================================================================================

Turns of one role that follow each other are one turn, as Anthropic has it. Texts of a turn are joined by newlines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from engines.wire import ChatMessage
from gateway.errors import InvalidRequest
from gateway.protocols.anthropic_blocks import (
    Block,
    blocks_of,
    check_fields,
    read_text_field,
    refuse,
    text_of,
    texts_of,
)
from gateway.protocols.anthropic_thinking import thought_in
from gateway.protocols.options import shown

__all__ = ["Conversation", "read_conversation"]

# Claude Code's first block of the system prompt, which is another one in each request: with it no prompt would begin like the
# one before, and all of it would be read anew.
_BILLING = "x-anthropic-billing-header"

_ROLES = ("user", "assistant", "system")
_USER_TEXTS = frozenset({"text", "document", "search_result"})
_RESULT_TEXTS = _USER_TEXTS | {"tool_reference"}


class Conversation(msgspec.Struct, frozen=True):
    """A request's messages.

    Attributes:
        messages: as the template gets them.
        goes_on: the last one is the assistant's text, which the answer goes on with.
        referenced: names of tools that a tool's result brought up.
    """

    messages: tuple[ChatMessage, ...]
    goes_on: bool
    referenced: frozenset[str]


def read_conversation(options: Mapping[str, Any], hints: set[str]) -> Conversation:
    """``system`` and ``messages``. InvalidRequest names the message and the block in it."""
    turns = _turns(options.get("messages"), hints)
    messages = _system(options.get("system"), hints)
    called: dict[str, str] = {}  # a call's id → its function
    referenced: set[str] = set()
    for role, blocks in turns:
        match role:
            case "user":
                messages += _user(blocks, called, referenced, hints)
            case "assistant":
                messages.append(_assistant(blocks, hints))
                called |= {call["id"]: call["function"]["name"] for call in messages[-1].extra.get("tool_calls", ())}
            case _:
                messages.append(ChatMessage(role=role, content="\n".join(_only_texts(blocks, hints))))
    last = messages[-1]
    goes_on = last.role == "assistant" and bool(last.content) and "tool_calls" not in last.extra
    if last.role == "assistant" and not last.content and not last.extra:
        messages.pop()  # an answer that is not begun yet
    return Conversation(tuple(messages), goes_on, frozenset(referenced))


def _turns(value: Any, hints: set[str]) -> list[tuple[str, list[Block]]]:
    """Roles and blocks, those of messages of one role in a row together."""
    if not isinstance(value, list) or not value:
        what = "is missing" if value is None else f"is {shown(value)}"
        raise InvalidRequest(f"messages {what}; it must be an array of at least one message", param="messages")
    read = [_message(item, f"messages[{i}]", hints) for i, item in enumerate(value)]
    return [
        (role, [block for _, blocks in messages for block in blocks])
        for role, messages in groupby(read, key=lambda message: message[0])
    ]


def _message(value: Any, field: str, hints: set[str]) -> tuple[str, list[Block]]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} is {shown(value)}; it must be an object", param=field)
    role = value.get("role")
    if role not in _ROLES:
        message = f"{field}.role is {shown(role)}; it must be one of {', '.join(_ROLES)}"
        raise InvalidRequest(message, param=f"{field}.role")
    check_fields(value, field, frozenset({"role", "content"}), frozenset(), hints)
    blocks = blocks_of(value.get("content"), f"{field}.content", hints)
    if not blocks and role != "assistant":  # an assistant may have said nothing
        message = f"{field}.content is an empty array; it must hold a content block"
        raise InvalidRequest(message, param=f"{field}.content")
    return role, blocks


def _system(value: Any, hints: set[str]) -> list[ChatMessage]:
    texts = [] if value is None else texts_of(value, "system", hints)
    kept = [text for text in texts if not text.startswith(f"{_BILLING}:")]
    if len(kept) < len(texts):
        hints.add(_BILLING)
    text = "\n".join(kept)
    return [ChatMessage(role="system", content=text)] if text else []


def _user(
    blocks: Sequence[Block], called: Mapping[str, str], referenced: set[str], hints: set[str]
) -> Iterable[ChatMessage]:
    texts = []
    for field, block in blocks:
        if block["type"] == "tool_result":
            yield _result(field, block, called, referenced, hints)
        elif block["type"] in _USER_TEXTS:
            texts.append(text_of(field, block, hints))
        else:
            refuse(field, block["type"])
    if texts:
        yield ChatMessage(role="user", content="\n".join(texts))


def _result(
    field: str, block: Mapping[str, Any], called: Mapping[str, str], referenced: set[str], hints: set[str]
) -> ChatMessage:
    id = read_text_field(block, field, "tool_use_id")
    if id not in called:
        where = f"{field}.tool_use_id"
        message = f"{where} is {shown(id)}; it must be the id of a tool_use block in an assistant's message before"
        raise InvalidRequest(message, param=where)
    failed = block.get("is_error")
    if not isinstance(failed, bool | None):
        message = f"{field}.is_error is {shown(failed)}; it must be true or false"
        raise InvalidRequest(message, param=f"{field}.is_error")
    content = block.get("content")
    texts = []
    for where, part in [] if content is None else blocks_of(content, f"{field}.content", hints):
        if part["type"] not in _RESULT_TEXTS:
            refuse(where, part["type"])
        if part["type"] == "tool_reference":
            referenced.add(read_text_field(part, where, "tool_name"))
        texts.append(text_of(where, part, hints))
    text = "\n".join(texts)
    if failed:  # which no template has a place for
        text = f"Error: {text}" if text else "Error"
    return ChatMessage(role="tool", content=text, extra={"tool_call_id": id, "name": called[id]})


def _assistant(blocks: Sequence[Block], hints: set[str]) -> ChatMessage:
    texts, thoughts, calls = [], [], []
    for field, block in blocks:
        match block["type"]:
            case "text":
                texts.append(text_of(field, block, hints))
            case "thinking":
                thoughts.append(thought_in(block, field))
            case "redacted_thinking":
                read_text_field(block, field, "data")  # another server's, which alone can read it
            case "tool_use":
                calls.append(_call(field, block))
            case kind:
                refuse(field, kind)
    extra: dict[str, Any] = {}
    if thought := "\n".join(filter(None, thoughts)):
        extra["reasoning_content"] = thought
    if calls:
        extra["tool_calls"] = calls
    text = "\n".join(texts)
    return ChatMessage(role="assistant", content=text if text or not calls else None, extra=extra)


def _call(field: str, block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        what = "is missing" if arguments is None else f"is {shown(arguments)}"
        raise InvalidRequest(f"{field}.input {what}; it must be an object", param=f"{field}.input")
    function = {
        "name": read_text_field(block, field, "name"),
        "arguments": json.dumps(arguments, ensure_ascii=False),
    }
    return {"id": read_text_field(block, field, "id"), "type": "function", "function": function}


def _only_texts(blocks: Sequence[Block], hints: set[str]) -> Iterable[str]:
    for field, block in blocks:
        if block["type"] != "text":
            refuse(field, block["type"])
        yield text_of(field, block, hints)
