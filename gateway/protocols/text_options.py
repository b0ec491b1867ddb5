"""Options that every text protocol has, and how they join the model's own settings into a request for the worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from engines.wire import ChatMessage, ChatPrompt, Sampling, TextPrompt, TextRequest, TokenPrompt
from gateway.errors import InvalidRequest
from gateway.protocols.options import MAX_TOKENS, read_integer, read_number, read_stop
from gateway.registry.catalog import RequestSettings

__all__ = ["TextOptions", "chat_prompt", "read_template_kwargs", "read_text_options", "text_request"]

_SEEDS = 2**63  # what every backend's random key can take
_RESERVED_KWARGS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the request said; None where it was silent."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


def read_text_options(options: Mapping[str, Any]) -> TextOptions:
    """Reads them in OpenAI's names and ranges. A negative seed is a seed like any other."""
    seed = read_integer(options, "seed", -(2**63), 2**63 - 1)
    return TextOptions(
        temperature=read_number(options, "temperature", 0, 2),
        top_p=read_number(options, "top_p", 0, 1),
        top_k=read_integer(options, "top_k", 0, MAX_TOKENS),
        min_p=read_number(options, "min_p", 0, 1),
        seed=None if seed is None else seed % _SEEDS,
        max_tokens=_read_max_tokens(options),
        stop=read_stop(options),
    )


def _read_max_tokens(options: Mapping[str, Any]) -> int | None:
    """``max_completion_tokens`` and its older name; both only when they agree."""
    newer = read_integer(options, "max_completion_tokens", 1, MAX_TOKENS)
    older = read_integer(options, "max_tokens", 1, MAX_TOKENS)
    if newer is not None and older is not None and newer != older:
        message = f"max_tokens is {older} and max_completion_tokens {newer}; give one of them"
        raise InvalidRequest(message, param="max_tokens")
    return older if newer is None else newer


def read_template_kwargs(kwargs: dict[str, Any]) -> dict[str, Any]:
    """``chat_template_kwargs``: anything but the names the template gets from elsewhere."""
    for name in kwargs:
        if name in _RESERVED_KWARGS:
            field = f"chat_template_kwargs.{name}"
            raise InvalidRequest(f"{field} cannot be set; the gateway fills it", param=field)
    return kwargs


def chat_prompt(
    messages: tuple[ChatMessage, ...], template_kwargs: Mapping[str, Any], settings: RequestSettings
) -> ChatPrompt:
    """Messages as the template gets them: the model's system prompt first, unless the request has one."""
    if settings.system is not None and not any(message.role == "system" for message in messages):
        messages = (ChatMessage(role="system", content=settings.system), *messages)
    return ChatPrompt(
        messages=messages,
        template=settings.chat_template,
        template_kwargs={**settings.chat_template_kwargs, **template_kwargs},
    )


def text_request(
    prompt: ChatPrompt | TextPrompt | TokenPrompt, options: TextOptions, settings: RequestSettings
) -> TextRequest:
    """Later wins: the fallbacks of ``Sampling``, the model's settings, the request's fields."""
    own = {name: getattr(options, name) for name in Sampling.__struct_fields__}
    chosen = {**settings.sampling, **{name: value for name, value in own.items() if value is not None}}
    return TextRequest(
        prompt=prompt,
        sampling=msgspec.convert(chosen, Sampling, strict=False),
        max_tokens=options.max_tokens,
        stop=options.stop,
    )
