"""``POST /v1/responses``: the request.

Source of shapes and ranges: OpenAI's API reference, "Create a model response". ``frequency_penalty``, ``logit_bias``, ``min_p``,
``presence_penalty``, ``repetition_penalty``, ``seed``, ``stop``, ``top_k``, ``priority`` and ``chat_template_kwargs`` are the
extensions that chat has, ``reasoning.enabled`` and ``reasoning.max_tokens`` OpenRouter's.

Parsing takes two steps, since a request may be about items that are stored: ``parse`` reads the body, and ``with_items`` makes
the conversation of what was stored and what came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.errors import InvalidRequest, NotFound
from gateway.protocols.chat_ask import ChatAsk
from gateway.protocols.json_body import decode_object
from gateway.protocols.options import (
    MAX_TOKENS,
    Limits,
    OptionTables,
    characters_in,
    read_boolean,
    read_choice,
    read_integer,
    read_object,
    read_string,
    shown,
    sort_options,
)
from gateway.protocols.responses_chat import messages_of
from gateway.protocols.responses_items import Item, item_characters, named, parse_items, reference_of
from gateway.protocols.responses_options import (
    ENCRYPTED,
    LOGPROBS,
    read_format,
    read_include,
    read_metadata,
    read_reasoning,
    read_stream,
    read_text,
    verbosity_hint,
)
from gateway.protocols.responses_tools import read_response_tools, shown_tools
from gateway.protocols.text_options import read_template_kwargs, read_text_options

__all__ = ["OPTIONS", "ResponseRequest", "Shape", "parse"]

_MAX_TOP_LOGPROBS = 20

OPTIONS = OptionTables(
    honoured=frozenset(
        {
            "background",
            "chat_template_kwargs",
            "frequency_penalty",
            "include",
            "input",
            "instructions",
            "logit_bias",
            "max_output_tokens",
            "metadata",
            "min_p",
            "model",
            "parallel_tool_calls",
            "presence_penalty",
            "previous_response_id",
            "priority",
            "reasoning",
            "repetition_penalty",
            "seed",
            "stop",
            "store",
            "stream",
            "stream_options",
            "temperature",
            "text",
            "tool_choice",
            "tools",
            "top_k",
            "top_logprobs",
            "top_p",
            "truncation",
        }
    ),
    hints=frozenset(
        {
            "client_metadata",
            "max_tool_calls",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "user",
        }
    ),
    refused={
        "access_programs": (),
        "background_options": (),
        "context_management": ([],),
        "conversation": (),
        "image": (),
        "max_completion_tokens": (),
        "max_tokens": (),
        "messages": (),
        "moderation": (),
        "prompt": (),
        "reasoning_effort": (),
        "response_format": (),
    },
    instead={
        "conversation": "previous_response_id",
        "max_completion_tokens": "max_output_tokens",
        "max_tokens": "max_output_tokens",
        "messages": "input",
        "prompt": "input",
        "reasoning_effort": "reasoning.effort",
        "response_format": "text.format",
    },
)
_SHOWN_HINTS = ("max_tool_calls", "prompt_cache_key", "safety_identifier", "user")


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer's items show.

    Attributes:
        summary: thinking stands in the item's summary and not in its content.
        sealed: reasoning items have their ``encrypted_content``.
        logprobs: texts have their tokens' log-probabilities.
    """

    summary: bool = False
    sealed: bool = False
    logprobs: bool = False


class ResponseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request.

    Attributes:
        ask: what is asked of the model, but for its messages.
        items: those of ``input``, as they came; references among them.
        truncate: the oldest of the conversation may be left out where it does not fit.
        shown: what the response says of its request, by OpenAI's names.
    """

    ask: ChatAsk
    items: tuple[Item, ...]
    instructions: str | None
    previous: str | None
    store: bool
    background: bool
    stream: bool
    truncate: bool
    shape: Shape
    shown: dict[str, Any]

    @property
    def references(self) -> list[str]:
        """The ids of the stored items that ``input`` refers to."""
        return [id for item in self.items if (id := reference_of(item)) is not None]

    def own_items(self, found: Mapping[str, Item], salt: str) -> tuple[Item, ...]:
        """The items of ``input`` with the stored ones in their places, each with an id. NotFound names a reference to nothing."""
        items = []
        for i, item in enumerate(self.items):
            id = reference_of(item)
            if id is not None and id not in found:
                message = (
                    f"input[{i}].id: there is no stored item {shown(id)}; items of responses that are not stored cannot be "
                    "referred to"
                )
                raise NotFound(message, param=f"input[{i}].id")
            items.append(item if id is None else found[id])
        return named(items, salt)

    def with_items(self, earlier: Sequence[Item], own: Sequence[Item], limits: Limits) -> ChatAsk:
        """What is asked of the model, with the conversation so far. InvalidRequest where its items do not go together."""
        count = sum(map(item_characters, earlier)) + sum(map(item_characters, own))
        limits.check_chars(count + len(self.instructions or ""), "previous_response_id" if earlier else "input")
        items = (*earlier, *own)
        messages = messages_of(self.instructions, items)
        if not any(message.role != "system" for message in messages):
            raise InvalidRequest("input holds no message; it must hold one", param="input")
        return msgspec.structs.replace(self.ask, messages=messages)


def parse(body: bytes, limits: Limits = Limits()) -> ResponseRequest:  # noqa: B008 (frozen)
    """The request in ``body``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    raw = decode_object(body, limits.max_values)
    options, ignored = sort_options(raw, OPTIONS)
    model = read_string(options, "model")
    items = parse_items(options.get("input"))
    previous = read_string(options, "previous_response_id") if "previous_response_id" in options else None
    if not items and previous is None:
        what = "is missing" if "input" not in options else "is empty"
        raise InvalidRequest(f"input {what}; it must be a string or an array of at least one item", param="input")
    instructions = read_text(options, "instructions")
    template_kwargs = read_template_kwargs(read_object(options, "chat_template_kwargs"))
    tools = read_response_tools(options)
    form = read_object(options, "text", ("format", "verbosity"))
    grammar = read_format(form.get("format"))
    characters = 0
    for field, count in (
        ("input", sum(map(item_characters, items))),
        ("instructions", len(instructions or "")),
        ("chat_template_kwargs", characters_in(template_kwargs)),
        ("tools", characters_in(options.get("tools"))),
        ("text.format", 0 if grammar is None else len(grammar.source)),
    ):
        characters += count
        limits.check_chars(characters, field)
    reasoning, summary, thought_hints = read_reasoning(options)
    includes, include_hints = read_include(options)
    top = read_integer(options, "top_logprobs", 0, _MAX_TOP_LOGPROBS)
    logprobs = (top or 0) if top or LOGPROBS in includes else None
    stream, stream_hints = read_stream(options)
    background, store = read_boolean(options, "background") or False, read_boolean(options, "store") is not False
    if background and not store:
        raise InvalidRequest("background is true; store must be true or absent beside it", param="background")
    hints = (*ignored, *thought_hints, *include_hints, *stream_hints, *verbosity_hint(form))
    text_options = read_text_options({**options, "max_tokens": None})
    most = read_integer(options, "max_output_tokens", 1, MAX_TOKENS)
    truncation = read_choice(options, "truncation", ("auto", "disabled")) or "disabled"
    asked = options.get("reasoning") or {}
    shown_options = {
        "background": background,
        "instructions": instructions,
        "max_output_tokens": most,
        "metadata": read_metadata(options),
        "parallel_tool_calls": options.get("parallel_tool_calls") is not False,
        "previous_response_id": previous,
        "reasoning": {"effort": asked.get("effort"), "summary": asked.get("summary")},
        "store": store,
        "text": {"format": form.get("format") or {"type": "text"}, "verbosity": form.get("verbosity") or "medium"},
        "tool_choice": options.get("tool_choice") or "auto",
        "tools": shown_tools(options),
        "top_logprobs": logprobs or 0,
        "truncation": truncation,
        **{name: raw.get(name) for name in _SHOWN_HINTS},
    }
    return ResponseRequest(
        ask=ChatAsk(
            model=model,
            messages=(),
            options=msgspec.structs.replace(text_options, max_tokens=most),
            clamp=True,
            logprobs=logprobs,
            template_kwargs=template_kwargs,
            tools=tools,
            grammar=grammar,
            reasoning=reasoning,
            ignored=hints,
        ),
        items=items,
        instructions=instructions,
        previous=previous,
        store=store,
        background=background,
        stream=stream,
        truncate=truncation == "auto",
        shape=Shape(summary=summary, sealed=ENCRYPTED in includes, logprobs=logprobs is not None),
        shown=shown_options,
    )
