"""Options that every text protocol has, and how they join the model's own settings into requests for the worker."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import msgspec

from engines.wire import Grammar, Priority, Prompt, Reasoning, Sampling, TextRequest, ToolUse
from gateway.errors import InvalidRequest
from gateway.protocols.options import (
    MAX_TOKENS,
    read_choice,
    read_integer,
    read_number,
    read_object,
    read_stop,
    shown,
)
from gateway.registry.catalog import RequestSettings

__all__ = [
    "MAX_CHOICES",
    "TextOptions",
    "read_priority",
    "read_template_kwargs",
    "read_text_options",
    "text_requests",
]

MAX_CHOICES = 128
MAX_BIASES = 10_000
_SEEDS = 2**63  # what every backend's random key can take
_PRIORITIES: tuple[Priority, ...] = get_args(Priority)
_TOKEN_ID = re.compile(r"(0|[1-9][0-9]{0,9})\Z")
_RESERVED_KWARGS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the request said; None where it was silent."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    priority: Priority | None = None


_SAMPLING = Sampling.__struct_fields__


def read_text_options(options: Mapping[str, Any], *, least_tokens: int = 1) -> TextOptions:
    """Reads them in OpenAI's names and ranges. A negative seed is a seed like any other."""
    seed = read_integer(options, "seed", -(2**63), 2**63 - 1)
    return TextOptions(
        temperature=read_number(options, "temperature", 0, 2),
        top_p=read_number(options, "top_p", 0, 1),
        top_k=read_integer(options, "top_k", 0, MAX_TOKENS),
        min_p=read_number(options, "min_p", 0, 1),
        seed=None if seed is None else seed % _SEEDS,
        frequency_penalty=read_number(options, "frequency_penalty", -2, 2),
        presence_penalty=read_number(options, "presence_penalty", -2, 2),
        repetition_penalty=read_number(options, "repetition_penalty", 0.01, 10),
        logit_bias=_read_logit_bias(options),
        max_tokens=_read_max_tokens(options, least_tokens),
        stop=read_stop(options),
        priority=read_priority(options),
    )


def read_priority(options: Mapping[str, Any]) -> Priority | None:
    """An extension that every text protocol has. InvalidRequest names the values."""
    return read_choice(options, "priority", _PRIORITIES)


def _read_max_tokens(options: Mapping[str, Any], least: int) -> int | None:
    """``max_completion_tokens`` and its older name; both only when they agree."""
    newer = read_integer(options, "max_completion_tokens", least, MAX_TOKENS)
    older = read_integer(options, "max_tokens", least, MAX_TOKENS)
    if newer is not None and older is not None and newer != older:
        message = f"max_tokens is {older} and max_completion_tokens {newer}; give one of them"
        raise InvalidRequest(message, param="max_tokens")
    return older if newer is None else newer


def _read_logit_bias(options: Mapping[str, Any]) -> dict[int, float] | None:
    """Token ids, as JSON's keys are strings, to what is added to their logits."""
    given = read_object(options, "logit_bias")
    if len(given) > MAX_BIASES:
        message = f"logit_bias is of {len(given)} tokens; it must be of at most {MAX_BIASES}"
        raise InvalidRequest(message, param="logit_bias")
    biases = {}
    for name, value in given.items():
        if _TOKEN_ID.match(name) is None:
            message = f"logit_bias has the key {shown(name)}; it must be a token id, such as '42'"
            raise InvalidRequest(message, param="logit_bias")
        if type(value) is int and -100 <= value <= 100:  # what nearly all are; the reader names its field for each
            biases[int(name)] = float(value)
            continue
        field = f"logit_bias.{name}"
        biases[int(name)] = read_number({field: value}, field, -100, 100) or 0.0
    return biases or None


def read_template_kwargs(kwargs: dict[str, Any]) -> dict[str, Any]:
    """``chat_template_kwargs``: anything but the names the template gets from elsewhere."""
    for name in kwargs:
        if name in _RESERVED_KWARGS:
            field = f"chat_template_kwargs.{name}"
            raise InvalidRequest(f"{field} cannot be set; the gateway fills it", param=field)
    return kwargs


def text_requests(
    prompt: Prompt,
    options: TextOptions,
    settings: RequestSettings,
    *,
    choices: int,
    siblings: Iterator[int],
    logprobs: int | None = None,
    echo: bool = False,
    max_tokens: int | None = None,
    clamp: bool = False,
    grammar: Grammar | None = None,
    tools: ToolUse | None = None,
    reasoning: Reasoning = Reasoning(),  # noqa: B008 (frozen)
) -> list[TextRequest]:
    """One request a choice of this prompt. Later wins: the fallbacks of ``Sampling`` and this ``max_tokens``, the model's
    settings, the request's fields.

    Choices share a number of ``siblings``, so that their prompt is read once. With a seed each has one of its own, counted on
    from that, so that they differ and are the same again next time.
    """
    sampling = _sampling(options, settings)
    limits = (options.max_tokens, settings.max_tokens, max_tokens)
    request = TextRequest(
        prompt=prompt,
        sampling=sampling,
        max_tokens=next((limit for limit in limits if limit is not None), None),
        clamp=clamp,
        stop=options.stop,
        logprobs=logprobs,
        echo=echo,
        siblings=next(siblings) if choices > 1 else None,
        priority=options.priority or settings.priority,
        grammar=grammar,
        tools=tools,
        reasoning=reasoning,
    )
    seed = sampling.seed
    if choices == 1:
        return [request]
    if seed is None:
        return [request] * choices
    replace = msgspec.structs.replace
    return [replace(request, sampling=replace(sampling, seed=(seed + i) % _SEEDS)) for i in range(choices)]


def _sampling(options: TextOptions, settings: RequestSettings) -> Sampling:
    own = {name: value for name in _SAMPLING if (value := getattr(options, name)) is not None}
    if not settings.sampling:
        return Sampling(**own)
    return msgspec.convert({**settings.sampling, **own}, Sampling, strict=False)
