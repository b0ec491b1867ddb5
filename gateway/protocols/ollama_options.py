"""What the bodies of ``/api/chat`` and ``/api/generate`` share: ``options``, ``format``, ``think``, ``logprobs``.

Source of names, meanings and defaults: Ollama's API documentation ("Valid Parameters and Values") and its Go types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from engines.wire import Grammar
from gateway.errors import InvalidRequest
from gateway.protocols.grammar_options import json_schema_grammar
from gateway.protocols.options import (
    MAX_TOKENS,
    OptionTables,
    read_boolean,
    read_integer,
    read_number,
    read_object,
    read_stop,
    shown,
    sort_options,
)
from gateway.protocols.text_options import TextOptions, read_priority
from gateway.registry.reasoning_settings import ReasoningSettings

__all__ = [
    "LEAST_PREDICT",
    "MAX_TOP_LOGPROBS",
    "MODEL_OPTIONS",
    "REFUSED",
    "THINK_LEVELS",
    "ModelOptions",
    "check_context",
    "check_think",
    "read_format",
    "read_logprobs",
    "read_model_options",
    "read_think",
]

MAX_TOP_LOGPROBS = 20
THINK_LEVELS = ("low", "medium", "high")
LEAST_PREDICT = -2
_SEEDS = 2**63
_WHOLE_CONTEXT = -1  # of repeat_last_n

REFUSED: dict[str, tuple[Any, ...]] = {"_debug_render_only": (False,), "shift": (False,), "truncate": (False,)}
"""Of both bodies: a conversation that is too long is an error, and never shortened."""

MODEL_OPTIONS = OptionTables(
    honoured=frozenset(
        {
            "frequency_penalty",
            "min_p",
            "num_ctx",
            "num_predict",
            "presence_penalty",
            "repeat_last_n",
            "repeat_penalty",
            "seed",
            "stop",
            "temperature",
            "top_k",
            "top_p",
        }
    ),
    hints=frozenset(
        {
            "f16_kv",
            "logits_all",
            "low_vram",
            "main_gpu",
            "mirostat_eta",
            "mirostat_tau",
            "num_batch",
            "num_gpu",
            "num_keep",
            "num_thread",
            "numa",
            "use_mlock",
            "use_mmap",
        }
    ),
    refused={
        "embedding_only": (False,),
        "mirostat": (0,),
        "penalize_newline": (True,),
        "tfs_z": (1,),
        "typical_p": (1,),
        "vocab_only": (False,),
    },
)

_PREFIXED = OptionTables(
    honoured=frozenset(f"options.{name}" for name in MODEL_OPTIONS.honoured),
    hints=frozenset(f"options.{name}" for name in MODEL_OPTIONS.hints),
    refused={f"options.{name}": neutral for name, neutral in MODEL_OPTIONS.refused.items()},
)


@dataclass(frozen=True)
class ModelOptions:
    """``options``, read. ``context`` is ``num_ctx``, which the model has to have; ``ignored`` names what changes nothing."""

    text: TextOptions
    context: int | None
    ignored: tuple[str, ...]


def read_model_options(body: Mapping[str, Any]) -> ModelOptions:
    """The body's ``options``, and beside them its ``priority``. Errors name the option as ``options.NAME``."""
    given = {f"options.{name}": value for name, value in read_object(body, "options").items()}
    options, ignored = sort_options(given, _PREFIXED)
    context = read_integer(options, "options.num_ctx", 1, MAX_TOKENS)
    text = TextOptions(
        temperature=read_number(options, "options.temperature", 0, 2),
        top_p=read_number(options, "options.top_p", 0, 1),
        top_k=_read_top_k(options),
        min_p=read_number(options, "options.min_p", 0, 1),
        seed=_read_seed(options),
        frequency_penalty=read_number(options, "options.frequency_penalty", -2, 2),
        presence_penalty=read_number(options, "options.presence_penalty", -2, 2),
        repetition_penalty=read_number(options, "options.repeat_penalty", 0.01, 10),
        max_tokens=_read_num_predict(options),
        stop=read_stop(options, "options.stop"),
        priority=read_priority(body),
    )
    window = read_integer(options, "options.repeat_last_n", _WHOLE_CONTEXT, MAX_TOKENS)
    if window == 0:
        text = msgspec.structs.replace(text, frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0)
    elif window not in (None, _WHOLE_CONTEXT):
        if text.frequency_penalty or text.presence_penalty or text.repetition_penalty not in (None, 1):
            message = f"options.repeat_last_n is {window}; beside a penalty it must be -1 (penalties count everything) or 0 (none)"
            raise InvalidRequest(message, param="options.repeat_last_n")
        ignored += ("options.repeat_last_n",)
    return ModelOptions(text, context, ignored if context is None else (*ignored, "options.num_ctx"))


def _read_top_k(options: Mapping[str, Any]) -> int | None:
    """-1 turns it off as 0 does."""
    top_k = read_integer(options, "options.top_k", -1, MAX_TOKENS)
    return top_k if top_k is None else max(0, top_k)


def _read_seed(options: Mapping[str, Any]) -> int | None:
    """-1 asks for another one each time, which is what absence does."""
    seed = read_integer(options, "options.seed", -(2**63), 2**63 - 1)
    return None if seed is None or seed == -1 else seed % _SEEDS


def _read_num_predict(options: Mapping[str, Any]) -> int | None:
    """-1 (no bound), -2 (as much as the context has) and 0 are one wish here: the answer ends where the context does at the
    latest. It is not absence, which leaves the bound to the model's settings.
    """
    count = read_integer(options, "options.num_predict", LEAST_PREDICT, MAX_TOKENS)
    return MAX_TOKENS if count is not None and count <= 0 else count


def check_context(asked: int | None, model: str, context: int) -> None:
    """InvalidRequest for a ``num_ctx`` that is more than the model's context; less changes nothing. 0: it is not known."""
    if asked is not None and 0 < context < asked:
        message = (
            f"options.num_ctx is {asked}; the context of model {model!r} has {context} tokens, "
            "which `context` in its registry entry sets"
        )
        raise InvalidRequest(message, param="options.num_ctx")


def read_format(body: Mapping[str, Any]) -> Grammar | None:
    """``format``: "json" or a JSON Schema; "" asks for nothing."""
    value = body.get("format")
    if value is None or value == "":
        return None
    if value == "json":
        return Grammar(kind="json_object")
    if not isinstance(value, dict):
        raise InvalidRequest(f"format is {shown(value)}; it must be 'json' or a JSON Schema", param="format")
    return json_schema_grammar(value, "format")


def read_think(body: Mapping[str, Any]) -> ReasoningSettings:
    """``think``: whether to, or how much."""
    value = body.get("think")
    if value is None or isinstance(value, bool):
        return ReasoningSettings(enabled=value)
    if value not in THINK_LEVELS:
        message = f"think is {shown(value)}; it must be true, false, or one of {', '.join(THINK_LEVELS)}"
        raise InvalidRequest(message, param="think")
    return ReasoningSettings(enabled=True, effort=value)


def check_think(asked: ReasoningSettings, *, thinks: bool) -> None:
    """InvalidRequest for a level that is asked of a model which does not think. That one cannot be told how much is no error."""
    if asked.effort is not None and not thinks:
        raise InvalidRequest("think: this model does not think before it answers", param="think")


def read_logprobs(body: Mapping[str, Any]) -> int | None:
    """``logprobs``, and ``top_logprobs`` beside it: how many alternatives, None for none of it."""
    top = read_integer(body, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if read_boolean(body, "logprobs"):
        return top or 0
    if top:
        message = f"top_logprobs is {top}; it is allowed only when logprobs is true"
        raise InvalidRequest(message, param="top_logprobs")
    return None
