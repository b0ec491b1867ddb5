"""Options about thinking, under the names that clients of local servers use.

===========================================  ==================================================================
option                                       who knows it
===========================================  ==================================================================
``reasoning_effort``                         OpenAI; ``none`` turns thinking off
``reasoning``                                OpenRouter: ``effort``, ``enabled``, ``max_tokens``, ``exclude``
``thinking_budget``                          Qwen's services, and templates
``thinking_budget_tokens``                   llama.cpp; the same
``include_reasoning``                        OpenRouter and vLLM; false leaves thinking out of the answer
``reasoning_format``                         llama.cpp (``auto``, ``deepseek``, ``none``) and Groq (``parsed``,
                                             ``raw``, ``hidden``)
``chat_template_kwargs.enable_thinking``     vLLM and SGLang; reaches the template as it is
===========================================  ==================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.protocols.options import MAX_TOKENS, read_boolean, read_choice, read_integer, read_object, shown
from gateway.registry.reasoning_settings import EFFORTS, ReasoningSettings

__all__ = ["ALL_EFFORTS", "REASONING_FORMATS", "REASONING_OPTIONS", "read_reasoning"]

REASONING_OPTIONS = frozenset(
    {
        "include_reasoning",
        "reasoning",
        "reasoning_effort",
        "reasoning_format",
        "thinking_budget",
        "thinking_budget_tokens",
    }
)
REASONING_FORMATS = ("auto", "deepseek", "parsed", "none", "raw", "hidden")
ALL_EFFORTS = ("none", *EFFORTS)
_TOGGLE = "enable_thinking"


def read_reasoning(options: Mapping[str, Any]) -> tuple[ReasoningSettings, bool]:
    """What is asked of the model, and whether the answer shows its thinking. InvalidRequest where two options disagree."""
    beside = {
        f"reasoning.{name}": value
        for name, value in read_object(options, "reasoning", ("effort", "enabled", "exclude", "max_tokens")).items()
    }
    effort = _one(
        ("reasoning_effort", read_choice(options, "reasoning_effort", ALL_EFFORTS)),
        ("reasoning.effort", read_choice(beside, "reasoning.effort", ALL_EFFORTS)),
    )
    enabled = _one(
        ("reasoning.enabled", read_boolean(beside, "reasoning.enabled")),
        ("reasoning_effort", None if effort is None else effort != "none"),
    )
    _one(("reasoning", enabled), (f"chat_template_kwargs.{_TOGGLE}", _toggled(options)))
    budget = _one(
        ("thinking_budget", read_integer(options, "thinking_budget", 0, MAX_TOKENS)),
        ("thinking_budget_tokens", read_integer(options, "thinking_budget_tokens", 0, MAX_TOKENS)),
        ("reasoning.max_tokens", read_integer(beside, "reasoning.max_tokens", 0, MAX_TOKENS)),
    )
    style = read_choice(options, "reasoning_format", REASONING_FORMATS)
    included = _one(
        ("include_reasoning", read_boolean(options, "include_reasoning")),
        ("reasoning.exclude", _not(read_boolean(beside, "reasoning.exclude"))),
        ("reasoning_format", None if style is None else style != "hidden"),
    )
    asked = ReasoningSettings(
        enabled=enabled,
        effort=None if effort == "none" else effort,
        budget=budget,
        split=None if style is None else style not in ("none", "raw"),
    )
    return asked, included is not False


def _one(*given: tuple[str, Any]) -> Any:
    """The value that these options agree on, None where all are silent."""
    said = [(name, value) for name, value in given if value is not None]
    for name, value in said[1:]:
        first, agreed = said[0]
        if value != agreed:
            message = f"{name} says {shown(value)} and {first} {shown(agreed)}; they must agree"
            raise InvalidRequest(message, param=name)
    return said[0][1] if said else None


def _toggled(options: Mapping[str, Any]) -> bool | None:
    kwargs = options.get("chat_template_kwargs")
    value = kwargs.get(_TOGGLE) if isinstance(kwargs, dict) else None
    return value if isinstance(value, bool) else None


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value
