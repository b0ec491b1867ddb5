"""JSON that broke off: the arguments of a call in an answer that ran out of tokens."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["whole_part"]

_CUTS = 4  # the last places where the text may be cut that are tried: an unfinished value is behind the last but one


def whole_part(text: str) -> Any:
    """The value of ``text``, what was left open closed and an unfinished member left out; None where there is none."""
    return next((value for end, closing in _ends(text) if (value := _value(text[:end] + closing)) is not None), None)


def _ends(text: str) -> list[tuple[int, str]]:
    """Places where the text may end, and what closes it there: the whole of it first, then before the last commas."""
    cuts: list[tuple[int, str]] = []
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
            cuts.append((place + 1, "".join(reversed(open_brackets))))
        elif character in "}]" and open_brackets:
            open_brackets.pop()
        elif character == ",":
            cuts.append((place, "".join(reversed(open_brackets))))
        del cuts[:-_CUTS]
    closing = "".join(reversed(open_brackets))
    return [(len(text), f'"{closing}' if in_string else closing), *reversed(cuts)]


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
