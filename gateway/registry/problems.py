"""What is wrong with a registry file: :class:`Problem` by key path, :class:`RegistryError` for whoever wanted the file."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

__all__ = ["Problem", "RegistryError", "nearest", "shorten"]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``key`` is the path of the key at fault, None where it is the file as a whole."""

    key: str | None
    message: str

    def __str__(self) -> str:
        return self.message if self.key is None else f"{self.key}: {self.message}"


class RegistryError(Exception):
    """The registry cannot be used. The message starts with the file and the key path; ``key`` is that path, where one is.

    ``problems``: all that were found, the one of the message first; empty where it is not about the file's keys.
    """

    def __init__(self, message: str, *, key: str | None = None, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message)
        self.key = key
        self.problems = tuple(problems)


_repr = reprlib.Repr()  # bounded in depth and breadth: a few aliases make a value whose repr() would take for ever
_repr.maxstring = _repr.maxother = _repr.maxlong = 60


def shorten(value: object) -> str:
    """A value for a message: never long, and never long in the making."""
    shown = _repr.repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def nearest(name: str, known: Collection[str], kind: str) -> str:
    """What to say after "unknown": the name that may be meant, else all there are. ``kind`` is their plural."""
    near = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known {kind}: {', '.join(known)}" if known else f"; there are no {kind}"
