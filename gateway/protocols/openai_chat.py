"""``POST /v1/chat/completions``: OpenAI's chat format.

Source of shapes and ranges: OpenAI's API reference, "Chat"; ``top_k``, ``min_p`` and ``chat_template_kwargs`` are the
extensions local servers share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engines.wire import ChatMessage, TextRequest
from gateway.errors import InvalidRequest
from gateway.protocols.completion import Completion, Piece
from gateway.protocols.json_body import decode_object
from gateway.protocols.openai_messages import parse_messages
from gateway.protocols.openai_stream import AnswerHead, OpenAIStream, encode_body
from gateway.protocols.options import (
    Limits,
    OptionTables,
    characters_in,
    read_boolean,
    read_object,
    read_string,
    sort_options,
)
from gateway.protocols.text_options import (
    TextOptions,
    chat_prompt,
    read_template_kwargs,
    read_text_options,
    text_request,
)
from gateway.registry.catalog import RequestSettings

__all__ = ["OPTIONS", "ChatRequest", "ChatStream", "parse", "read_stream", "render_body"]

OPTIONS = OptionTables(
    honoured=frozenset(
        {
            "chat_template_kwargs",
            "max_completion_tokens",
            "max_tokens",
            "messages",
            "min_p",
            "model",
            "seed",
            "stop",
            "stream",
            "stream_options",
            "temperature",
            "top_k",
            "top_p",
        }
    ),
    hints=frozenset(
        {
            "cache_prompt",
            "metadata",
            "parallel_tool_calls",  # says nothing without tools
            "prompt_cache_key",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "store",
            "user",
        }
    ),
    refused={
        "audio": (),
        "frequency_penalty": (0,),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "ignore_eos": (False,),
        "logit_bias": ({},),
        "logprobs": (False,),
        "min_tokens": (0,),
        "modalities": (["text"],),
        "n": (1,),
        "prediction": (),
        "presence_penalty": (0,),
        "reasoning_effort": (),
        "repetition_penalty": (1,),
        "response_format": ({"type": "text"},),
        "tool_choice": ("none", "auto"),  # nothing to choose from without tools
        "tools": ([],),
        "top_logprobs": (0,),
        "verbosity": (),
        "web_search_options": (),
    },
)


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. ``ignored`` names the hints it carried."""

    model: str
    messages: tuple[ChatMessage, ...]
    options: TextOptions
    stream: bool
    include_usage: bool
    template_kwargs: dict[str, Any]
    ignored: tuple[str, ...]

    def text_requests(self, settings: RequestSettings) -> tuple[TextRequest, ...]:
        """What the worker is asked, one request a choice, over the model's own settings."""
        prompt = chat_prompt(self.messages, self.template_kwargs, settings)
        return (text_request(prompt, self.options, settings),)


def parse(body: bytes, limits: Limits = Limits()) -> ChatRequest:  # noqa: B008 (frozen)
    """The request in ``body``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    options, ignored = sort_options(decode_object(body, limits.max_values), OPTIONS)
    model = read_string(options, "model")
    messages = parse_messages(options.get("messages"))
    limits.check_chars(sum(map(_characters, messages)), "messages")
    template_kwargs = read_template_kwargs(read_object(options, "chat_template_kwargs"))
    limits.check_chars(characters_in(template_kwargs), "chat_template_kwargs")
    stream, include_usage = read_stream(options)
    return ChatRequest(
        model=model,
        messages=messages,
        options=read_text_options(options),
        stream=stream,
        include_usage=include_usage,
        template_kwargs=template_kwargs,
        ignored=ignored,
    )


def _characters(message: ChatMessage) -> int:
    """What the message holds for a template; at least 1, so that a limit on characters bounds empty messages too."""
    return max(1, len(message.content or "") + characters_in(message.extra))


def read_stream(options: dict[str, Any]) -> tuple[bool, bool]:
    """``stream`` and ``stream_options.include_usage``; the latter only beside the former."""
    stream = read_boolean(options, "stream") or False
    stream_options = read_object(options, "stream_options", ("include_usage", "include_obfuscation"))
    if stream_options and not stream:
        raise InvalidRequest("stream_options is allowed only when stream is true", param="stream_options")
    for name in stream_options:
        if not isinstance(stream_options[name], bool | None):
            field = f"stream_options.{name}"
            raise InvalidRequest(f"{field} must be true or false", param=field)
    return stream, stream_options.get("include_usage") or False


class ChatStream(OpenAIStream):
    """A streamed answer: a first delta with the role, text deltas, a last one with the finish reason, each choice."""

    object_name = "chat.completion.chunk"

    def __init__(self, head: AnswerHead, *, include_usage: bool = False) -> None:
        super().__init__(head, include_usage=include_usage)
        self._begun: set[int] = set()

    def _choices(self, piece: Piece) -> list[dict[str, Any]]:
        choices = []
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            choices.append(_choice(piece.index, {"role": "assistant", "content": ""}, None))
        if piece.text:
            choices.append(_choice(piece.index, {"content": piece.text}, None))
        if piece.finish is not None:
            choices.append(_choice(piece.index, {}, piece.finish.reason))
        return choices


def _choice(index: int, delta: dict[str, str], finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def render_body(head: AnswerHead, completions: Sequence[Completion]) -> bytes:
    """The unstreamed answer."""
    choices = [
        {
            "index": completion.index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": None,
            "finish_reason": completion.finish.reason,
        }
        for completion in completions
    ]
    return encode_body(head, "chat.completion", choices, completions)
