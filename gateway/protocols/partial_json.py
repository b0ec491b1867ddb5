"""JSON that broke off: the arguments of a call in an answer that ran out of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

__all__ = ["whole_part"]

_CUTS = 4  # the last places where the text may be cut that are tried: an unfinished member is behind the last but one


def whole_part(text: str) -> Any:
    """The value of ``text``, what was left open closed and an unfinished member left out; None where there is none."""
    return next((value for end in _ended(text) if (value := _value(end)) is not None), None)


def _ended(text: str) -> Iterator[str]:
    """The text with an end: all of it first, then less and less."""
    closing, cuts = _scanned(text)
    yield text + closing
    for place in reversed(cuts):
        yield text[:place] + _scanned(text[:place])[0]


def _scanned(text: str) -> tuple[str, list[int]]:
    """What closes the text, and the last places before which members are whole."""
    cuts: list[int] = []
    open_brackets: list[str] = []
    in_string = escaped = False
    for place, character in enumerate(text):
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "{[":
            open_brackets.append("}" if character == "{" else "]")
            cuts.append(place + 1)
        elif character in "}]" and open_brackets:
            open_brackets.pop()
        elif character == ",":
            cuts.append(place)
    closing = "".join(reversed(open_brackets))
    return f'"{closing}' if in_string else closing, cuts[-_CUTS:]


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
