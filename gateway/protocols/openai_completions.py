"""``POST /v1/completions``: OpenAI's older format, text or token ids in and text out; no chat template.

Source of shapes and ranges: OpenAI's API reference, "Completions (Legacy)".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from engines.wire import TextPrompt, TextRequest, TokenPrompt
from gateway.errors import InvalidRequest
from gateway.protocols.completion import Completion, Piece
from gateway.protocols.json_body import decode_object
from gateway.protocols.openai_chat import read_stream
from gateway.protocols.openai_stream import AnswerHead, OpenAIStream, encode_body
from gateway.protocols.options import Limits, OptionTables, read_string, shown, sort_options
from gateway.protocols.text_options import TextOptions, read_text_options, text_request
from gateway.registry.catalog import RequestSettings

__all__ = ["DEFAULT_MAX_TOKENS", "OPTIONS", "CompletionRequest", "CompletionStream", "parse", "render_body"]

DEFAULT_MAX_TOKENS = 16
_TOKEN_IDS = 2**31

OPTIONS = OptionTables(
    honoured=frozenset(
        {
            "max_tokens",
            "min_p",
            "model",
            "prompt",
            "seed",
            "stop",
            "stream",
            "stream_options",
            "temperature",
            "top_k",
            "top_p",
        }
    ),
    hints=frozenset({"cache_prompt", "user"}),
    refused={
        "best_of": (1,),
        "echo": (False,),
        "frequency_penalty": (0,),
        "ignore_eos": (False,),
        "logit_bias": ({},),
        "logprobs": (False,),  # 0 asks for the chosen token's
        "min_tokens": (0,),
        "n": (1,),
        "presence_penalty": (0,),
        "repetition_penalty": (1,),
        "suffix": ("",),
    },
)

_PROMPT = "a string, an array of token ids, or an array of these"


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. Each prompt is one choice. ``ignored`` names the hints it carried."""

    model: str
    prompts: tuple[TextPrompt | TokenPrompt, ...]
    options: TextOptions
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]

    def text_requests(self, settings: RequestSettings) -> tuple[TextRequest, ...]:
        """What the worker is asked, one request a choice, over the model's own settings."""
        return tuple(text_request(prompt, self.options, settings) for prompt in self.prompts)


def parse(body: bytes, limits: Limits = Limits()) -> CompletionRequest:  # noqa: B008 (frozen)
    """The request in ``body``. InvalidRequest (or RequestTooLarge) names the field, its value and what is allowed."""
    options, ignored = sort_options(decode_object(body, limits.max_values), OPTIONS)
    model = read_string(options, "model")
    prompts = _prompts(options.get("prompt"), limits)
    stream, include_usage = read_stream(options)
    read = read_text_options(options)
    if read.max_tokens is None:
        read = msgspec.structs.replace(read, max_tokens=DEFAULT_MAX_TOKENS)
    return CompletionRequest(
        model=model, prompts=prompts, options=read, stream=stream, include_usage=include_usage, ignored=ignored
    )


def _prompts(value: Any, limits: Limits) -> tuple[TextPrompt | TokenPrompt, ...]:
    if value is None:
        raise InvalidRequest(f"prompt is missing; it must be {_PROMPT}", param="prompt")
    if isinstance(value, str):
        limits.check_chars(len(value), "prompt")
        return (TextPrompt(text=value),)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"prompt is {shown(value)}; it must be {_PROMPT}", param="prompt")
    if _is_token_id(value[0]):
        return (_tokens(value, "prompt", limits),)
    limits.check_inputs(len(value), "prompt")
    limits.check_chars(sum(len(item) for item in value if isinstance(item, str | list)), "prompt")
    return tuple(_prompt(item, f"prompt[{i}]", limits) for i, item in enumerate(value))


def _prompt(value: Any, field: str, limits: Limits) -> TextPrompt | TokenPrompt:
    if isinstance(value, str):
        return TextPrompt(text=value)
    if isinstance(value, list) and value:
        return _tokens(value, field, limits)
    raise InvalidRequest(f"{field} is {shown(value)}; it must be a string or an array of token ids", param=field)


def _tokens(values: list[Any], field: str, limits: Limits) -> TokenPrompt:
    limits.check_chars(len(values), field)  # a token is at least a character
    for i, value in enumerate(values):
        if not _is_token_id(value) or not 0 <= value < _TOKEN_IDS:
            where = f"{field}[{i}]"
            raise InvalidRequest(f"{where} is {shown(value)}; it must be a token id, 0 or above", param=where)
    return TokenPrompt(tokens=tuple(values))


def _is_token_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class CompletionStream(OpenAIStream):
    """A streamed answer: text, then a chunk with the finish reason, each choice."""

    object_name = "text_completion"

    def _choices(self, piece: Piece) -> list[dict[str, Any]]:
        choices = []
        if piece.text:
            choices.append(_choice(piece.index, piece.text, None))
        if piece.finish is not None:
            choices.append(_choice(piece.index, "", piece.finish.reason))
        return choices


def _choice(index: int, text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": None, "finish_reason": finish_reason}


def render_body(head: AnswerHead, completions: Sequence[Completion]) -> bytes:
    """The unstreamed answer."""
    choices = [_choice(item.index, item.text, item.finish.reason) for item in completions]
    return encode_body(head, "text_completion", choices, completions)
