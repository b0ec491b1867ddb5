"""Reading a request's options: each reader names field, value and range in its 400.

Every option of a protocol stands in one of three tables; a name in none of them is refused:

- *honoured*: a reader per name;
- *hints*: accepted, cannot change the output; named in the response header ``x-innkeeper-ignored``;
- *refused*: known to the protocol but not to this gateway; accepted only with a value that asks for nothing (``n: 1``).

``null`` counts as absent throughout, as OpenAI's servers have it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gateway.errors import InvalidRequest, RequestTooLarge, UnsupportedParameter

__all__ = [
    "MAX_STOPS",
    "MAX_STOP_CHARS",
    "MAX_TOKENS",
    "MAX_TOKEN_ID",
    "Limits",
    "OptionTables",
    "characters_in",
    "read_boolean",
    "read_choice",
    "read_integer",
    "read_number",
    "read_object",
    "read_stop",
    "read_string",
    "read_token_ids",
    "shown",
    "sort_options",
]

Choice = TypeVar("Choice", bound=str)

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_TOKENS = 2**31 - 1
MAX_TOKEN_ID = 2**31 - 1


@dataclass(frozen=True)
class Limits:
    """``server.max_inputs`` and ``server.max_chars``: what one request may hold."""

    max_inputs: int = 2048
    max_chars: int = 1_000_000

    @property
    def max_values(self) -> int:
        """JSON values a body may hold: one a character, as many commas within texts, and some for what stands around."""
        return 10_000 + 2 * self.max_chars

    def check_inputs(self, count: int, field: str) -> None:
        """RequestTooLarge for more than ``max_inputs`` inputs."""
        if count > self.max_inputs:
            message = f"{field} holds {count} inputs; server.max_inputs allows {self.max_inputs}"
            raise RequestTooLarge(message, param=field)

    def check_chars(self, count: int, field: str) -> None:
        """RequestTooLarge for more than ``max_chars`` characters."""
        if count > self.max_chars:
            message = f"{field} holds {count} characters; server.max_chars allows {self.max_chars}"
            raise RequestTooLarge(message, param=field)


@dataclass(frozen=True)
class OptionTables:
    """The three tables of one protocol. ``refused`` maps a name to the values that ask for nothing, ``instead`` to the name that
    asks for what it does.
    """

    honoured: frozenset[str]
    hints: frozenset[str]
    refused: Mapping[str, tuple[Any, ...]]
    instead: Mapping[str, str] = field(default_factory=dict)


def sort_options(body: Mapping[str, Any], tables: OptionTables) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The honoured options that are present, and the names of hints that were. UnsupportedParameter for the others."""
    honoured: dict[str, Any] = {}
    hints: list[str] = []
    for name, value in body.items():
        if value is None and (name in tables.honoured or name in tables.hints or name in tables.refused):
            continue
        if name in tables.honoured:
            honoured[name] = value
        elif name in tables.hints:
            hints.append(name)
        elif name in tables.refused:
            if not any(_same(value, neutral) for neutral in tables.refused[name]):
                raise UnsupportedParameter(_unsupported(name, value, tables), param=name)
        else:
            raise UnsupportedParameter(_unknown(name, tables), param=name[:100])
    return honoured, tuple(hints)


def characters_in(value: Any) -> int:
    """Characters of all texts within a JSON value, keys too."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + characters_in(item) for name, item in value.items())
    return sum(map(characters_in, value)) if isinstance(value, list) else 0


def _unknown(name: str, tables: OptionTables) -> str:
    # Of options within an object the name alone is compared: what all have in common makes none likely.
    section, dot, last = name[:100].rpartition(".")
    known = [*tables.honoured, *tables.hints]
    beside = sorted(one.removeprefix(section + dot) for one in known if one.startswith(section + dot))
    nearest = difflib.get_close_matches(last, beside, 1)
    guess = f"; did you mean {section + dot + nearest[0]!r}?" if nearest else ""
    return f"unknown parameter {name[:100]!r}{guess}"


def _unsupported(name: str, value: Any, tables: OptionTables) -> str:
    """Of a refused option: what is asked for, what may be, and what to use in its place."""
    neutral = tables.refused[name]
    allowed = f"; it may be {' or '.join(map(json.dumps, neutral))}" if neutral else ""
    instead = f"; use {tables.instead[name]}" if name in tables.instead else ""
    said = f"{name}: {shown(value)}" if neutral or not isinstance(value, list | dict) else name
    return f"{said} is not supported{instead or allowed}"


def _same(value: Any, neutral: Any) -> bool:
    # In Python True == 1; in JSON it does not.
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def shown(value: Any) -> str:
    """A value as an error message shows it: JSON's spelling of scalars, the kind of the rest; never long."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return repr(value if len(value) <= 40 else value[:40] + "…")
        case int() | float():
            return repr(value)
        case list():
            return f"an array of {len(value)}"
        case _:
            return "an object"


def _invalid(field: str, value: Any, allowed: str) -> InvalidRequest:
    return InvalidRequest(f"{field} is {shown(value)}; it must be {allowed}", param=field)


def read_number(options: Mapping[str, Any], field: str, low: float, high: float) -> float | None:
    """A number in [low, high], None where absent."""
    value = options.get(field)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _invalid(field, value, f"a number from {low:g} to {high:g}")
    return float(value)


def read_integer(options: Mapping[str, Any], field: str, low: int, high: int) -> int | None:
    """An integer in [low, high], None where absent. 5.0 is one, as JSON Schema has it."""
    value = options.get(field)
    if value is None:
        return None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or not low <= value <= high:
        raise _invalid(field, value, f"an integer from {low} to {high}")
    return int(value)


def read_boolean(options: Mapping[str, Any], field: str) -> bool | None:
    """True or false, None where absent."""
    value = options.get(field)
    if value is not None and not isinstance(value, bool):
        raise _invalid(field, value, "true or false")
    return value


def read_choice(options: Mapping[str, Any], field: str, values: Sequence[Choice]) -> Choice | None:
    """One of these strings, None where absent."""
    value = options.get(field)
    if value is not None and value not in values:
        raise _invalid(field, value, f"one of {', '.join(values)}")
    chosen: Choice | None = value
    return chosen


def read_string(options: Mapping[str, Any], field: str) -> str:
    """A string of at least one character; it must be there."""
    value = options.get(field)
    if value is None:
        raise InvalidRequest(f"{field} is missing; it must be a string", param=field)
    if not isinstance(value, str) or not value:
        raise _invalid(field, value, "a string of at least one character")
    return value


def read_object(options: Mapping[str, Any], field: str, known: Collection[str] | None = None) -> dict[str, Any]:
    """An object, empty where absent; with ``known``, of these keys only."""
    value = options.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(field, value, "an object")
    for name in value if known is not None else ():
        if known is not None and name not in known:
            raise UnsupportedParameter(f"unknown parameter '{field}.{name[:100]}'", param=f"{field}.{name[:100]}")
    return value


def read_stop(options: Mapping[str, Any], field: str = "stop") -> tuple[str, ...]:
    """A string or up to 16 of them, each of 1 to 1024 characters."""
    value = options.get(field)
    if value is None:
        return ()
    stops: Iterable[Any] = [value] if isinstance(value, str) else value
    allowed = f"a string or an array of at most {MAX_STOPS}, each of 1 to {MAX_STOP_CHARS} characters"
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise _invalid(field, value, allowed)
    for i, stop in enumerate(stops):
        if not isinstance(stop, str) or not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise _invalid(field if isinstance(value, str) else f"{field}[{i}]", stop, allowed)
    return tuple(stops)


def read_token_ids(values: Sequence[Any], field: str) -> tuple[int, ...]:
    """Token ids; 5.0 is one, as JSON Schema has it. Whether one is in a vocabulary, its tokenizer says."""
    for i, value in enumerate(values):
        if not _is_token_id(value):
            raise _invalid(f"{field}[{i}]", value, f"a token id from 0 to {MAX_TOKEN_ID}")
    return tuple(map(int, values))


def _is_token_id(value: Any) -> bool:
    whole = type(value) is int or (type(value) is float and value.is_integer())
    return whole and 0 <= value <= MAX_TOKEN_ID
