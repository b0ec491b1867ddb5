"""Inputs that are too long: refused, or cut where the request says."""

from __future__ import annotations

from engines.errors import ContextLengthExceeded
from engines.wire import Truncate

__all__ = ["fitted", "too_long"]


def fitted(ids: list[int], room: int, around: int, truncate: Truncate, what: str, param: str) -> list[int]:
    """``ids`` in ``room`` tokens, where ``around`` more go around them. ContextLengthExceeded that says the lengths, with
    ``none``; ``start`` and ``end`` say where tokens are lost. ``what`` is what messages call it, ``param`` its field."""
    if len(ids) <= room:
        return ids
    if truncate == "none":
        raise too_long(len(ids) + around, room + around, what, param)
    return ids[len(ids) - room :] if truncate == "start" else ids[:room]


def too_long(tokens: int, most: int, what: str, param: str) -> ContextLengthExceeded:
    """The error of an input of so many tokens where so many are allowed."""
    return ContextLengthExceeded(
        f"{what} has {tokens} tokens; this model reads {most} at most. Shorten it, or ask with `truncate` for it to lose some.",
        param=param,
        tokens=tokens,
        most_tokens=most,
    )
