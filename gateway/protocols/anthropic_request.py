"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: what Anthropic's clients ask. Answers are in ``anthropic_answer``.

Source of the shapes: Anthropic's API reference, "Messages", and its Python client's types. ``chat_template_kwargs``, ``min_p``,
``priority``, ``repetition_penalty`` and ``seed`` are extensions that local servers share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from engines.wire import ChatPrompt, EncodeChat, Grammar, TextRequest
from gateway.errors import InvalidRequest, UnsupportedParameter
from gateway.protocols.anthropic_answer import MessageStream, render_body
from gateway.protocols.anthropic_messages import read_conversation
from gateway.protocols.anthropic_thinking import Thoughts, read_thinking
from gateway.protocols.anthropic_tools import read_tools
from gateway.protocols.chat_ask import ChatAsk
from gateway.protocols.completion import AnswerHead, BodyFormat
from gateway.protocols.grammar_options import json_schema_grammar
from gateway.protocols.json_body import decode_object
from gateway.protocols.options import (
    Limits,
    OptionTables,
    characters_in,
    read_boolean,
    read_object,
    read_stop,
    read_string,
    shown,
    sort_options,
)
from gateway.protocols.text_options import TextOptions, read_template_kwargs, read_text_options
from gateway.registry.catalog import RequestSettings

__all__ = ["COUNT_OPTIONS", "OPTIONS", "CountRequest", "MessagesRequest", "parse", "parse_count", "unheard"]

# What the prompt is made of, and what says how the answer may look.
_PROMPT = frozenset(
    {
        "chat_template_kwargs",
        "messages",
        "model",
        "output_config",
        "output_format",
        "system",
        "thinking",
        "tool_choice",
        "tools",
    }
)

OPTIONS = OptionTables(
    honoured=_PROMPT
    | {
        "max_tokens",
        "min_p",
        "priority",
        "repetition_penalty",
        "seed",
        "stop_sequences",
        "stream",
        "temperature",
        "top_k",
        "top_p",
    },
    hints=frozenset(
        {
            "anthropic_beta",
            "anthropic_version",
            "betas",
            "billing_policy",
            "cache_control",
            "context_management",
            "diagnostics",
            "inference_geo",
            "metadata",
            "service_tier",
            "speed",
            "user_profile_id",
        }
    ),
    refused={
        "compaction": (),
        "container": (),
        "fallback_credit_token": (),
        "fallbacks": ([],),
        "mcp_servers": ([],),
        "thread": (),
    },
    instead={"mcp_servers": "tools"},
)
COUNT_OPTIONS = OptionTables(
    honoured=_PROMPT,
    hints=OPTIONS.hints | (OPTIONS.honoured - _PROMPT),
    refused=OPTIONS.refused,
    instead=OPTIONS.instead,
)


class MessagesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request: what is asked of the model, how the answer is sent, and what it shows of the model's thinking."""

    ask: ChatAsk
    stream: bool
    thoughts: Thoughts

    def text_requests(self, settings: RequestSettings, siblings: Iterator[int]) -> list[TextRequest]:
        """What the worker is asked. ``max_tokens`` is a bound: agents name the largest answer they know of for any model."""
        return [
            msgspec.structs.replace(_lenient(request), clamp=True)
            for request in self.ask.text_requests(settings, siblings)
        ]

    def stream_format(self, head: AnswerHead, request_id: str) -> MessageStream | None:
        """How the answer is streamed, None where it is not."""
        if not self.stream:
            return None
        return MessageStream(head, request_id, max_tokens=self.ask.options.max_tokens, thoughts=self.thoughts)

    def body_format(self, head: AnswerHead) -> BodyFormat:
        """How an unstreamed answer looks."""
        return partial(render_body, head, max_tokens=self.ask.options.max_tokens, thoughts=self.thoughts)


def unheard(ask: ChatAsk, *, thinks: bool, takes_effort: bool) -> tuple[str, ...]:
    """The hints of a request, and its wishes about thinking that a model cannot follow which does not think, or cannot be told
    how much.
    """
    thinking = () if thinks or not ask.reasoning.enabled else ("thinking",)
    effort = () if takes_effort or ask.reasoning.effort is None else ("output_config.effort",)
    return (*ask.ignored, *thinking, *effort)


class CountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request for a count."""

    ask: ChatAsk

    def what(self, settings: RequestSettings) -> EncodeChat:
        """What the tokenizer is asked: the prompt that an answer would be made of."""
        (request,) = map(_lenient, self.ask.text_requests(settings, iter(())))
        assert isinstance(request.prompt, ChatPrompt)
        return EncodeChat(
            prompt=request.prompt, tools=request.tools, reasoning=request.reasoning, add_special=True, continues=True
        )


def _lenient(request: TextRequest) -> TextRequest:
    """What it says of thinking is a wish: agents say the same to models that think, that do not, and that cannot be told."""
    return msgspec.structs.replace(request, reasoning=msgspec.structs.replace(request.reasoning, lenient=True))


def parse(body: bytes, limits: Limits = Limits()) -> MessagesRequest:  # noqa: B008 (frozen)
    """The request in ``body``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    options, ignored = sort_options(decode_object(body, limits.max_values), OPTIONS)
    if options.get("max_tokens") is None:
        raise InvalidRequest("max_tokens is missing; it must be an integer from 1", param="max_tokens")
    stops = options.get("stop_sequences")
    if isinstance(stops, str):
        raise InvalidRequest(
            f"stop_sequences is {shown(stops)}; it must be an array of strings", param="stop_sequences"
        )
    read = msgspec.structs.replace(read_text_options(options), stop=read_stop(options, "stop_sequences"))
    ask, thoughts = _ask(options, ignored, limits, read)
    return MessagesRequest(ask=ask, stream=read_boolean(options, "stream") or False, thoughts=thoughts)


def parse_count(body: bytes, limits: Limits = Limits()) -> CountRequest:  # noqa: B008 (frozen)
    """The request in ``body``, as above; what only an answer would need is a hint."""
    options, ignored = sort_options(decode_object(body, limits.max_values), COUNT_OPTIONS)
    ask, _ = _ask(options, ignored, limits, TextOptions())
    return CountRequest(ask=ask)


def _ask(
    options: Mapping[str, Any], ignored: tuple[str, ...], limits: Limits, read: TextOptions
) -> tuple[ChatAsk, Thoughts]:
    """What is asked of the model, and what the answer shows of its thinking."""
    model = read_string(options, "model")
    hints: set[str] = set()
    conversation = read_conversation(options, hints)
    tools = read_tools(options, conversation.referenced, hints)
    output_config = read_object(options, "output_config", ("effort", "format", "task_budget"))
    if output_config.get("task_budget") is not None:
        hints.add("output_config.task_budget")
    grammar = _read_format(options, output_config)
    reasoning, thoughts = read_thinking(options, output_config)
    template_kwargs = read_template_kwargs(read_object(options, "chat_template_kwargs"))
    characters = 0
    for field, count in (
        ("messages", sum(max(1, len(it.content or "") + characters_in(it.extra)) for it in conversation.messages)),
        ("chat_template_kwargs", characters_in(template_kwargs)),
        ("tools", characters_in(options.get("tools"))),
        ("output_config", 0 if grammar is None else len(grammar.source)),
    ):
        characters += count
        limits.check_chars(characters, field)
    ask = ChatAsk(
        model=model,
        messages=conversation.messages,
        options=read,
        template_kwargs=template_kwargs,
        add_generation_prompt=not conversation.goes_on,
        tools=tools,
        grammar=grammar,
        reasoning=reasoning,
        ignored=tuple(dict.fromkeys((*ignored, *sorted(hints)))),
    )
    return ask, thoughts


def _read_format(options: Mapping[str, Any], output_config: Mapping[str, Any]) -> Grammar | None:
    """``output_config.format``, or its older name ``output_format``."""
    newer, older = output_config.get("format"), options.get("output_format")
    if newer is not None and older is not None and newer != older:
        message = "output_format is not what output_config.format is; give one of them"
        raise InvalidRequest(message, param="output_format")
    field, value = ("output_config.format", newer) if newer is not None else ("output_format", older)
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind != "json_schema":
        if isinstance(kind, str):
            message = f"{field}.type is {shown(kind)}, which is not supported; it must be 'json_schema'"
            raise UnsupportedParameter(message, param=f"{field}.type")
        message = f"{field} is {shown(value)}; it must be an object whose type is 'json_schema'"
        raise InvalidRequest(message, param=field)
    return json_schema_grammar(read_object({field: value}, field, ("type", "schema")).get("schema"), f"{field}.schema")
