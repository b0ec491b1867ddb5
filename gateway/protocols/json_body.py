"""A request body to a JSON object, more strictly than the JSON modules: one way to read it, or a 400.

Refused beside malformed JSON: invalid UTF-8, NaN and infinities, integers beyond 64 bits, a key given twice (two readers
would take different ones), lone surrogates (they cannot be encoded again on the way to the worker), nesting deeper than
:data:`MAX_DEPTH`, and more values than any request needs: a body of 64 MiB can hold tens of millions, which take seconds to
decode and gigabytes to hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from math import isinf
from typing import Any

from gateway.errors import InvalidRequest, RequestTooLarge

__all__ = ["MAX_DEPTH", "MAX_VALUES", "decode_object"]

MAX_DEPTH = 100
MAX_VALUES = 2_000_000
_INTEGER_BITS = 64
_LONGEST_PLACE = 400  # characters of a field that an error names
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def decode_object(body: bytes, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """The object in ``body``. InvalidRequest when it is not one, RequestTooLarge when it has more than ``max_values`` values."""
    # Values are parted by commas; those within texts count too, so the limit stands well above what texts may hold.
    if body.count(b",") > max_values:
        raise RequestTooLarge(f"the body holds more than {max_values} values, which server.max_chars bounds")
    if not body.strip():
        raise InvalidRequest("the body is empty; it must be a JSON object")
    try:
        value = _decode(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not valid UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise _too_deep() from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {_JSON_NAMES.get(type(value), 'null')}")
    # Both walks are skipped for bodies that cannot need them, which is nearly all.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    if _SURROGATE.search(body):
        _check_surrogates(value)
    return value


def _decode(text: str) -> Any:
    try:
        return _decoder.decode(text)
    except _WrongNumberError:
        # Read again, now with a mark in the place of such numbers: a decoder does not say where it is.
        raise _refusal_of_marked(_marking_decoder.decode(text)) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise InvalidRequest(f"the body gives the key {_twice(pairs)[:100]!r} twice in one object")
    return members


def _twice(pairs: list[tuple[str, Any]]) -> str:
    """The first key that comes again. One pass: there may be hundreds of thousands."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        seen.add(name)
    raise AssertionError("every key is there once")


class _WrongNumberError(Exception):
    """A number that is refused; its text says why, and follows the name of its field."""


def _integer(digits: str) -> int:
    if len(digits) < 19:  # within 63 bits
        return int(digits)
    # Judged by length first: int() takes quadratic time on long strings.
    if len(digits) > 20 or (value := int(digits)).bit_length() > _INTEGER_BITS:
        raise _WrongNumberError(f"is {digits[:24]}…; it must be an integer within {_INTEGER_BITS} bits")
    return value


def _float(text: str) -> float:
    value = float(text)
    if isinf(value):
        raise _WrongNumberError(f"is {text[:24]}, which is out of range")
    return value


def _constant(name: str) -> Any:
    raise _WrongNumberError(f"is {name}, which is not JSON")


def _marked(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """``parse``, which gives what it would raise about a number."""

    def parse_or_mark(text: str) -> Any:
        try:
            return parse(text)
        except _WrongNumberError as mark:
            return mark

    return parse_or_mark


def _refusal_of_marked(value: Any) -> InvalidRequest:
    """About the first mark in ``value``, which has one. The place is put together for that alone: a body may have a million."""
    names: list[str | int] = []
    open_items: list[Iterator[tuple[str | int, Any]]] = [iter([("", value)])]
    while True:
        name, item = next(open_items[-1], (None, None))
        if name is None:
            open_items.pop()
            names.pop()
        elif isinstance(item, _WrongNumberError):
            field = _place([*names, name][1:])
            return InvalidRequest(f"{field or 'the body'} {item}", param=field or None)
        elif isinstance(item, dict | list):
            names.append(name)
            open_items.append(iter(item.items()) if isinstance(item, dict) else iter(enumerate(item)))


def _place(names: Sequence[str | int]) -> str:
    """Such as ``messages[0].content``; of a place that is deep the end."""
    parts = [f"[{name}]" if isinstance(name, int) else f".{name[:100]}" for name in names]
    place = "".join(parts).removeprefix(".").encode(errors="backslashreplace").decode()  # as messages write surrogates
    return place if len(place) <= _LONGEST_PLACE else f"…{place[-_LONGEST_PLACE:]}"


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant)
_marking_decoder = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_marked(_integer),
    parse_float=_marked(_float),
    parse_constant=_marked(_constant),
)
_JSON_NAMES: dict[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
}


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"the body is nested deeper than {MAX_DEPTH} levels")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _check_surrogates(value: Any) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str):
            try:
                item.encode("utf-8")
            except UnicodeEncodeError as error:
                raise InvalidRequest("the body holds a lone surrogate, which is not a character") from error
