"""What the bodies of embedding and rerank routes share: many texts, and what becomes of one that is too long.

Characters are counted as often as a model reads them: what stands before each input, or beside each document, counts with each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from engines.wire import Truncate
from gateway.errors import InvalidRequest
from gateway.protocols.options import Limits, read_choice, read_string, read_token_ids, shown

__all__ = ["TRUNCATES", "Input", "characters_of", "read_inputs", "read_instruction", "read_texts", "read_truncate"]

Input = str | tuple[int, ...]
"""A text, or token ids."""

TRUNCATES = (*get_args(Truncate), *(name.upper() for name in get_args(Truncate)))
"""Some clients write them in capitals."""

_INPUTS = "a string, an array of token ids, or an array of these"
_TEXTS = "a string or an array of strings"


def read_inputs(options: Mapping[str, Any], field: str, limits: Limits) -> tuple[Input, ...]:
    """One text, one array of token ids, or an array of both; it must be there. Of token ids each counts as a character."""
    value = options.get(field)
    if value is None:
        raise InvalidRequest(f"{field} is missing; it must be {_INPUTS}", param=field)
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"{field} is {shown(value)}; it must be {_INPUTS}", param=field)
    if isinstance(value[0], int | float) and not isinstance(value[0], bool):
        limits.check_chars(len(value), field)
        return (read_token_ids(value, field),)
    limits.check_inputs(len(value), field)
    limits.check_chars(sum(len(item) for item in value if isinstance(item, str | list)), field)
    return tuple(_input(item, f"{field}[{i}]") for i, item in enumerate(value))


def _input(value: Any, field: str) -> Input:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return read_token_ids(value, field)
    raise InvalidRequest(f"{field} is {shown(value)}; it must be a string or an array of token ids", param=field)


def read_texts(options: Mapping[str, Any], field: str, limits: Limits) -> tuple[str, ...]:
    """One text, or an array of texts; it must be there."""
    value = options.get(field)
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        what = "is missing" if value is None else f"is {shown(value)}"
        raise InvalidRequest(f"{field} {what}; it must be {_TEXTS}", param=field)
    limits.check_inputs(len(value), field)
    for i, item in enumerate(value):
        if not isinstance(item, str):
            raise InvalidRequest(f"{field}[{i}] is {shown(item)}; it must be a string", param=f"{field}[{i}]")
    return tuple(value)


def characters_of(texts: Sequence[Input]) -> int:
    """Characters of texts, and the token ids."""
    return sum(map(len, texts))


def read_truncate(options: Mapping[str, Any]) -> Truncate:
    """Where a text that is too long loses tokens; without it such a text is refused."""
    value = read_choice(options, "truncate", TRUNCATES)
    return "none" if value is None else _TRUNCATE[value]


_TRUNCATE: dict[str, Truncate] = {spelled: name for name in get_args(Truncate) for spelled in (name, name.upper())}


def read_instruction(options: Mapping[str, Any]) -> str | None:
    """The task, for models whose prompt takes one."""
    return read_string(options, "instruction") if "instruction" in options else None
