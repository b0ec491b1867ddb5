"""``POST /v1/chat/completions``: OpenAI's chat format.

Source of shapes and ranges: OpenAI's API reference, "Chat"; ``top_k``, ``min_p``, ``repetition_penalty``, ``priority``,
``chat_template_kwargs``, ``add_generation_prompt`` and ``continue_final_message`` are extensions that local servers share, and so
is ``reasoning_content`` of a message. Tools, grammars and thinking have files of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from engines.wire import ChatMessage
from gateway.errors import InvalidRequest
from gateway.protocols.chat_ask import ChatAsk
from gateway.protocols.completion import AnswerHead, BodyFormat, Completion
from gateway.protocols.grammar_options import GRAMMAR_OPTIONS, read_grammar
from gateway.protocols.json_body import decode_object
from gateway.protocols.openai_logprobs import chat_logprobs
from gateway.protocols.openai_messages import parse_messages
from gateway.protocols.openai_stream import (
    OpenAIStream,
    StreamOptions,
    encode_body,
    read_stream_options,
)
from gateway.protocols.openai_tools import TOOL_OPTIONS, read_tools
from gateway.protocols.options import (
    Limits,
    OptionTables,
    characters_in,
    read_boolean,
    read_integer,
    read_object,
    read_string,
    sort_options,
)
from gateway.protocols.piece import ArgumentsPiece, CallPiece, EndPiece, Piece, TextPiece, ThoughtPiece
from gateway.protocols.reasoning_options import REASONING_OPTIONS, read_reasoning
from gateway.protocols.text_options import (
    MAX_CHOICES,
    read_template_kwargs,
    read_text_options,
)

__all__ = ["OPTIONS", "ChatRequest", "ChatStream", "parse", "render_body"]

_MAX_TOP_LOGPROBS = 20

OPTIONS = OptionTables(
    honoured=frozenset(
        {
            "add_generation_prompt",
            "chat_template_kwargs",
            "continue_final_message",
            "frequency_penalty",
            "logit_bias",
            "logprobs",
            "max_completion_tokens",
            "max_tokens",
            "messages",
            "min_p",
            "model",
            "n",
            "presence_penalty",
            "priority",
            "repetition_penalty",
            "seed",
            "stop",
            "stream",
            "stream_options",
            "temperature",
            "top_k",
            "top_logprobs",
            "top_p",
        }
    )
    | TOOL_OPTIONS
    | GRAMMAR_OPTIONS
    | REASONING_OPTIONS,
    hints=frozenset(
        {
            "cache_prompt",
            "guided_decoding_backend",
            "metadata",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "service_tier",
            "store",
            "user",
            "verbosity",
        }
    ),
    refused={
        "audio": (),
        "function_call": ("none", "auto"),
        "functions": ([],),
        "ignore_eos": (False,),
        "min_tokens": (0,),
        "modalities": (["text"],),
        "moderation": (),
        "prediction": (),
        "repeat_penalty": (1,),
        "web_search_options": (),
    },
    instead={"function_call": "tool_choice", "functions": "tools", "repeat_penalty": "repetition_penalty"},
)


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request: what is asked of the model, and how the answer is sent. ``thoughts``: whether it shows them."""

    ask: ChatAsk
    stream: StreamOptions
    thoughts: bool = True

    def stream_format(self, head: AnswerHead) -> ChatStream | None:
        """How the answer is streamed, None where it is not."""
        if not self.stream.wanted:
            return None
        return ChatStream(
            head, include_usage=self.stream.include_usage, siblings=self.ask.choices, thoughts=self.thoughts
        )

    def body_format(self, head: AnswerHead) -> BodyFormat:
        """How an unstreamed answer looks."""
        return partial(render_body, head, logprobs=self.ask.logprobs is not None, thoughts=self.thoughts)


def parse(body: bytes, limits: Limits = Limits()) -> ChatRequest:  # noqa: B008 (frozen)
    """The request in ``body``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    options, ignored = sort_options(decode_object(body, limits.max_values), OPTIONS)
    model = read_string(options, "model")
    messages = parse_messages(options.get("messages"))
    template_kwargs = read_template_kwargs(read_object(options, "chat_template_kwargs"))
    tools = read_tools(options)
    grammar = read_grammar(options)
    reasoning, thoughts = read_reasoning(options)
    characters = 0
    for field, count in (
        ("messages", sum(map(_characters, messages))),
        ("chat_template_kwargs", characters_in(template_kwargs)),
        ("tools", characters_in(options.get("tools"))),
        ("response_format", 0) if grammar is None else (grammar.field, len(grammar.source)),
    ):
        characters += count
        limits.check_chars(characters, field)
    stream = read_stream_options(options)
    ask = ChatAsk(
        model=model,
        messages=messages,
        options=read_text_options(options),
        choices=read_integer(options, "n", 1, MAX_CHOICES) or 1,
        logprobs=_read_logprobs(options),
        template_kwargs=template_kwargs,
        add_generation_prompt=_read_turn(options, messages[-1]),
        tools=tools,
        grammar=grammar,
        reasoning=reasoning,
        ignored=ignored + stream.ignored,
    )
    return ChatRequest(ask=ask, stream=stream, thoughts=thoughts)


def _characters(message: ChatMessage) -> int:
    """What the message holds for a template; at least 1, so that a limit on characters bounds empty messages too."""
    extra = characters_in(message.extra) if message.extra else 0
    return max(1, len(message.content or "") + extra)


def _read_logprobs(options: dict[str, Any]) -> int | None:
    """``logprobs``, and ``top_logprobs`` beside it."""
    wanted = read_boolean(options, "logprobs")
    top = read_integer(options, "top_logprobs", 0, _MAX_TOP_LOGPROBS)
    if wanted:
        return top or 0
    if top:
        message = f"top_logprobs is {top}; it is allowed only when logprobs is true"
        raise InvalidRequest(message, param="top_logprobs")
    return None


def _read_turn(options: dict[str, Any], last: ChatMessage) -> bool:
    """Whether the answer begins a turn of its own (True) or goes on with the last message.

    1. An assistant's message at the end is gone on with, unless ``continue_final_message`` is false or
       ``add_generation_prompt`` true.
    2. After any other there is a new turn. Without a generation prompt the model has to begin that itself.
    """
    begin, go_on = read_boolean(options, "add_generation_prompt"), read_boolean(options, "continue_final_message")
    if begin and go_on:
        message = "continue_final_message is true; add_generation_prompt must be false or absent beside it"
        raise InvalidRequest(message, param="continue_final_message")
    # 1.
    if last.role == "assistant" and last.content is not None and "tool_calls" not in last.extra:
        if begin is False and go_on is False:
            message = (
                "add_generation_prompt and continue_final_message are false; "
                "after an assistant's message one of them must be true"
            )
            raise InvalidRequest(message, param="add_generation_prompt")
        return begin is True or go_on is False
    # 2.
    if go_on:
        message = "continue_final_message is true; the last message must be an assistant's text, which is gone on with"
        raise InvalidRequest(message, param="continue_final_message")
    return begin is not False


class ChatStream(OpenAIStream):
    """A streamed answer, each choice: a first delta with the role, then text, thoughts and calls as they come, a last one with
    the finish reason. A call's first delta has its id and name, those that follow fragments of its arguments.
    """

    object_name = "chat.completion.chunk"

    def __init__(
        self, head: AnswerHead, *, include_usage: bool = False, siblings: int = 1, thoughts: bool = True
    ) -> None:
        super().__init__(head, include_usage=include_usage, siblings=siblings)
        self._thoughts = thoughts
        self._begun: set[int] = set()

    def _choices(self, piece: Piece) -> list[dict[str, Any]]:
        if isinstance(piece, ThoughtPiece) and not self._thoughts:
            return []
        choices = []
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            # An answer that begins with a call or a thought may have no content at all.
            content = "" if isinstance(piece, TextPiece | EndPiece) else None
            choices.append(_choice(piece.index, {"role": "assistant", "content": content}))
        match piece:
            case TextPiece():
                logprobs = chat_logprobs(piece.logprobs) if piece.logprobs else None
                choices.append(_choice(piece.index, {"content": piece.text}, logprobs))
            case ThoughtPiece():
                choices.append(_choice(piece.index, {"reasoning_content": piece.text}))
            case CallPiece():
                call = {"index": piece.call, **_call(piece.id, piece.name, "")}
                choices.append(_choice(piece.index, {"tool_calls": [call]}))
            case ArgumentsPiece():
                fragment = {"index": piece.call, "function": {"arguments": piece.text}}
                choices.append(_choice(piece.index, {"tool_calls": [fragment]}))
            case EndPiece():
                choices.append(_choice(piece.index, {}, None, piece.finish.reason))
        return choices


def _choice(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def render_body(
    head: AnswerHead, completions: Sequence[Completion], *, logprobs: bool = False, thoughts: bool = True
) -> bytes:
    """The unstreamed answer; all completions are of one prompt."""
    choices = [
        {
            "index": completion.index,
            "message": _message(completion, thoughts),
            "logprobs": chat_logprobs(completion.logprobs) if logprobs else None,
            "finish_reason": completion.finish.reason,
        }
        for completion in completions
    ]
    return encode_body(head, "chat.completion", choices, completions, siblings=len(completions))


def _message(completion: Completion, thoughts: bool) -> dict[str, Any]:
    """Thinking and calls stand there only where there are any; beside calls a missing text is null."""
    calls = completion.calls
    message: dict[str, Any] = {
        "role": "assistant",
        "content": completion.text or (None if calls else ""),
        "refusal": None,
    }
    if thoughts and (thought := completion.thought):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [_call(call.id, call.name, call.arguments) for call in calls]
    return message
