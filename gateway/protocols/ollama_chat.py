"""``POST /api/chat``: Ollama's chat.

Source of shapes: Ollama's API documentation, "Generate a chat completion", and its Go type ``ChatRequest``.
"""

from __future__ import annotations

from typing import Any

from engines.wire import ChatMessage, ToolUse
from gateway.protocols.chat_ask import ChatAsk
from gateway.protocols.json_body import decode_object
from gateway.protocols.ollama_duration import read_keep_alive
from gateway.protocols.ollama_messages import parse_messages
from gateway.protocols.ollama_options import REFUSED, read_format, read_logprobs, read_model_options, read_think
from gateway.protocols.ollama_request import OllamaRequest
from gateway.protocols.openai_tools import read_tools
from gateway.protocols.options import Limits, OptionTables, characters_in, read_boolean, read_string, sort_options
from gateway.protocols.tool_options import read_tool_list

__all__ = ["OPTIONS", "parse"]

OPTIONS = OptionTables(
    honoured=frozenset(
        {
            "format",
            "keep_alive",
            "logprobs",
            "messages",
            "model",
            "options",
            "priority",
            "stream",
            "think",
            "tools",
            "top_logprobs",
        }
    ),
    hints=frozenset(),
    refused=REFUSED,
)


def parse(body: bytes, limits: Limits = Limits()) -> OllamaRequest:  # noqa: B008 (frozen)
    """The request in ``body``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    fields, ignored = sort_options(decode_object(body, limits.max_values), OPTIONS)
    messages = parse_messages(fields.get("messages"))
    tools = _read_tools(fields.get("tools"))
    grammar = read_format(fields)
    options = read_model_options(fields)
    characters = 0
    for field, count in (
        ("messages", sum(map(_characters, messages))),
        ("tools", characters_in(fields.get("tools"))),
        ("format", 0 if grammar is None else len(grammar.source)),
    ):
        characters += count
        limits.check_chars(characters, field)
    ask = ChatAsk(
        model=read_string(fields, "model"),
        messages=messages,
        options=options.text,
        clamp=True,
        logprobs=read_logprobs(fields),
        add_generation_prompt=not messages or not _goes_on(messages[-1]),
        tools=tools,
        grammar=grammar,
        reasoning=read_think(fields),
        ignored=(*ignored, *options.ignored),
    )
    return OllamaRequest(
        ask=ask,
        shape="chat",
        stream=read_boolean(fields, "stream") is not False,
        keep_alive_s=read_keep_alive(fields),
        context=options.context,
    )


def _goes_on(last: ChatMessage) -> bool:
    """Whether the answer goes on with the last message, which is the assistant's."""
    return last.role == "assistant" and bool(last.content) and "tool_calls" not in last.extra


def _read_tools(value: Any) -> ToolUse | None:
    """OpenAI's shape, but that a tool need not say that it is a function. The model decides whether to call."""
    return read_tools({"tools": [{**tool, "type": tool.get("type") or "function"} for tool in read_tool_list(value)]})


def _characters(message: ChatMessage) -> int:
    """At least 1, so that a limit on characters bounds empty messages too."""
    return max(1, len(message.content or "") + characters_in(message.extra))
