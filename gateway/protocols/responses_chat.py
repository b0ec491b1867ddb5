"""Items and instructions to the messages a chat template reads.

===========================================  ========================================================================
items                                        message
===========================================  ========================================================================
``instructions``, then system and developer  one of the role ``system``: many templates take one, at the beginning
messages at the beginning
reasoning, message, calls in this order      one of the role ``assistant``: ``reasoning_content``, text, ``tool_calls``
``function_call_output``                     one of the role ``tool``, with its function's name
any other                                    one each
===========================================  ========================================================================

Texts of a message's parts are joined by a newline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engines.wire import ChatMessage
from gateway.errors import InvalidRequest
from gateway.protocols.options import shown
from gateway.protocols.responses_items import Item
from gateway.protocols.responses_thoughts import thought_of

__all__ = ["messages_of"]

_ORDER = ("reasoning", "message", "function_call")  # within one answer of an assistant's


def messages_of(instructions: str | None, items: Sequence[Item], field: str = "input") -> tuple[ChatMessage, ...]:
    """The conversation. InvalidRequest for an output whose call is not there; ``field`` is where the items come from."""
    system = [] if instructions is None else [instructions]
    messages: list[ChatMessage] = []
    called: dict[str, str] = {}  # a call's id → its function
    turn = _Turn()
    for i, item in enumerate(items):
        where = f"{field}[{i}]"
        said = item["type"] in _ORDER and item.get("role", "assistant") == "assistant"
        if not said or not turn.takes(item):
            messages += turn.messages
            called |= turn.called
            turn = _Turn()
        if said:
            turn.add(item, where)
        elif item["type"] == "function_call_output":
            messages.append(_result(item, called, where))
        elif item["role"] in ("system", "developer") and not messages:
            system.append(_text(item["content"]))
        else:
            role = "system" if item["role"] == "developer" else item["role"]
            messages.append(ChatMessage(role=role, content=_text(item["content"])))
    messages += turn.messages
    return (ChatMessage(role="system", content="\n\n".join(system)), *messages) if system else tuple(messages)


class _Turn:
    """An assistant's answer that is being put together."""

    def __init__(self) -> None:
        self._place = -1  # of the last item's kind in the order
        self._thoughts: list[str] = []
        self._text: str | None = None
        self._calls: list[dict[str, Any]] = []

    def takes(self, item: Item) -> bool:
        """Whether it belongs to what is there: several thoughts and calls do, one message."""
        place = _ORDER.index(item["type"])
        return place > self._place or (place == self._place and item["type"] != "message")

    def add(self, item: Item, where: str) -> None:
        self._place = _ORDER.index(item["type"])
        match item["type"]:
            case "reasoning":
                self._thoughts.append(thought_of(item, where))
            case "message":
                self._text = _text(item["content"])
            case _:
                function = {"name": item["name"], "arguments": item["arguments"]}
                self._calls.append({"id": item["call_id"], "type": "function", "function": function})

    @property
    def called(self) -> dict[str, str]:
        """The ids of its calls, and what they call."""
        return {call["id"]: call["function"]["name"] for call in self._calls}

    @property
    def messages(self) -> list[ChatMessage]:
        """What it comes to: one message, none of thinking that led to nothing."""
        if self._text is None and not self._calls:
            return []
        extra: dict[str, Any] = {}
        if thought := "\n".join(filter(None, self._thoughts)):
            extra["reasoning_content"] = thought
        if self._calls:
            extra["tool_calls"] = self._calls
        return [ChatMessage(role="assistant", content=self._text, extra=extra)]


def _result(item: Item, called: Mapping[str, str], where: str) -> ChatMessage:
    """A tool's message."""
    id = item["call_id"]
    if id not in called:
        message = f"{where}.call_id is {shown(id)}; it must be that of a function_call before it"
        raise InvalidRequest(message, param=f"{where}.call_id")
    output = item["output"]
    content = output if isinstance(output, str) else _text(output)
    return ChatMessage(role="tool", content=content, extra={"tool_call_id": id, "name": called[id]})


def _text(parts: Sequence[dict[str, Any]]) -> str:
    return "\n".join(part["refusal"] if part["type"] == "refusal" else part["text"] for part in parts)
