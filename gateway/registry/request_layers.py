"""Request settings as levels, and how levels become one: later wins, key by key.

A key is a dotted path: ``sampling.temperature``, ``system``, ``chat_template_kwargs.enable_thinking``, ``reasoning.effort``.
Nothing below it is merged: a kwarg whose value is a mapping is replaced whole. A value None takes away what came before, but a
kwarg's, which is the template's null.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from engines.wire import Priority
from gateway.registry.reasoning_settings import ReasoningSettings

__all__ = [
    "KWARGS",
    "REASONING",
    "SAMPLING",
    "Layer",
    "RequestSettings",
    "Setting",
    "explain_settings",
    "resolve_settings",
]

SAMPLING: Final = "sampling."
KWARGS: Final = "chat_template_kwargs."
REASONING: Final = "reasoning."
_SEEDS: Final = 2**63  # what every backend's random key can take


@dataclass(frozen=True)
class RequestSettings:
    """What a request gets where it is silent. ``sampling`` holds fields of ``engines.wire.Sampling``. ``priority`` is the model's
    own, which no level sets.
    """

    sampling: Mapping[str, float | int] = field(default_factory=dict)
    system: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    reasoning: ReasoningSettings = ReasoningSettings()  # noqa: RUF009 (frozen)
    tool_syntax: str | None = None
    priority: Priority = "normal"


@dataclass(frozen=True)
class Layer:
    """One level. ``origin`` is what it is called in ``config show``, ``notes`` what is added to that for some of its keys."""

    origin: str
    values: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def named(self, origin: str) -> Layer:
        """The same values under another name."""
        return Layer(origin, self.values, self.notes)


@dataclass(frozen=True)
class Setting:
    """A value that was resolved, and which level it comes from."""

    key: str
    value: Any
    origin: str


def resolve_settings(layers: Iterable[Layer]) -> RequestSettings:
    """The settings these levels make, lowest first."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer.values)
    sampling, kwargs = _part(merged, SAMPLING), _part(merged, KWARGS)
    chosen = {name: value for name, value in sampling.items() if value is not None}
    if "seed" in chosen:
        chosen["seed"] %= _SEEDS  # a negative seed is a seed like any other
    max_tokens = chosen.pop("max_tokens", None)
    return RequestSettings(
        chosen,
        merged.get("system"),
        merged.get("chat_template"),
        kwargs,
        max_tokens,
        ReasoningSettings(**_part(merged, REASONING)),
        merged.get("tool_syntax"),
    )


def explain_settings(layers: Iterable[Layer]) -> tuple[Setting, ...]:
    """The same, value by value with its origin: sampling first, then the rest in the order of :class:`RequestSettings`."""
    found: dict[str, Setting] = {}
    for layer in layers:
        for key, value in layer.values.items():
            note = f" ({layer.notes[key]})" if key in layer.notes else ""
            found[key] = Setting(key, value, layer.origin + note)
    order = (SAMPLING, "system", "chat_template", KWARGS, REASONING, "tool_syntax")
    return tuple(setting for start in order for key, setting in found.items() if _belongs(key, start))


def _belongs(key: str, start: str) -> bool:
    return key.startswith(start) if start.endswith(".") else key == start


def _part(merged: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in merged.items() if key.startswith(prefix)}
