"""One section of request settings, as it stands in the file, to a :class:`Layer`: templates are read, values are checked that
have no range of their own.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from msgspec import UNSET

from gateway.registry.chat_template import read_chat_template
from gateway.registry.problems import Problem, shorten
from gateway.registry.request_layers import KWARGS, REASONING, SAMPLING, Layer
from gateway.registry.request_schema import SettingsSection
from gateway.registry.values import ValueProblem

__all__ = ["section_layer"]

_RESERVED: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})
_MAX_DEPTH: Final = 32
_MAX_VALUES: Final = 10_000
_INTEGERS: Final = range(-(2**63), 2**64)  # what can cross to a worker


def section_layer(origin: str, section: SettingsSection, path: str, directory: Path, problems: list[Problem]) -> Layer:
    """The section's values under their keys; what is wrong with them joins ``problems``. ``path`` is the section's key."""
    values: dict[str, Any] = {}
    notes: dict[str, str] = {}
    sampling = section.sampling
    if sampling is not UNSET:
        for name in sampling.__struct_fields__:
            if (value := getattr(sampling, name)) is not UNSET:
                values[SAMPLING + name] = value
    if section.system is not UNSET:
        values["system"] = section.system
        if section.system is not None and not _encodable(section.system):
            problems.append(Problem(f"{path}.system", f"holds half a surrogate pair (found {shorten(section.system)})"))
    if section.chat_template is None:
        values["chat_template"] = None
    elif section.chat_template is not UNSET:
        try:
            values["chat_template"], file = read_chat_template(section.chat_template, directory)
        except ValueProblem as problem:
            problems.append(Problem(f"{path}.chat_template", str(problem)))
        else:
            if file is not None:
                notes["chat_template"] = file
            if not _encodable(values["chat_template"]):
                problems.append(Problem(f"{path}.chat_template", "holds half a surrogate pair"))
    if section.chat_template_kwargs is not UNSET:
        for name, value in section.chat_template_kwargs.items():
            wrong = _kwarg_problem(name, value)
            if wrong is not None:
                problems.append(Problem(f"{path}.chat_template_kwargs.{name}", wrong))
            values[KWARGS + name] = value
    if section.reasoning is not UNSET:
        for name in section.reasoning.__struct_fields__:
            if (value := getattr(section.reasoning, name)) is not UNSET:
                values[REASONING + name] = value
    if section.tool_syntax is not UNSET:
        values["tool_syntax"] = section.tool_syntax
    return Layer(origin, values, notes)


def _kwarg_problem(name: str, value: object) -> str | None:
    if name in _RESERVED:
        return "cannot be set; the gateway fills it"
    if not _encodable(name):
        return "the name holds half a surrogate pair"
    left = [_MAX_VALUES]
    return _json_problem(value, left, _MAX_DEPTH)


def _json_problem(value: object, left: list[int], depth: int) -> str | None:
    """Why a value is not JSON's, None when it is. ``left``: how many more values there may be (YAML's aliases make many of few)."""
    left[0] -= 1
    if left[0] < 0:
        return f"holds more than {_MAX_VALUES} values"
    if depth == 0:
        return f"is nested more than {_MAX_DEPTH} deep"
    match value:
        case None | bool():
            return None
        case str():
            return None if _encodable(value) else f"holds half a surrogate pair (found {shorten(value)})"
        case int():
            return None if value in _INTEGERS else f"expected an integer of 64 bits (found {shorten(value)})"
        case float():
            return None if math.isfinite(value) else f"expected a finite number (found {value})"
        case list():
            return next((wrong for item in value if (wrong := _json_problem(item, left, depth - 1))), None)
        case dict():
            parts = (part for pair in value.items() for part in pair)
            return next((wrong for part in parts if (wrong := _json_problem(part, left, depth - 1))), None)
        case _:
            return f"expected a value that JSON has (found {shorten(value)}); in quotes it is text"


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
