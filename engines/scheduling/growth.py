"""How much room a row asks for where the KV grant is too small for it alone. Lengths are tokens, prompt and answer together.

A row that has not begun asks when the grant cannot hold what it needs at least, and waits. One that has begun asks ahead of
time; where it reaches the end of the grant first, it gives its cache back and waits for GROWTH_WAIT_S, then ends there.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GROWTH_WAIT_S", "OPEN_ANSWER", "RowLengths", "asked", "asked_ahead"]

OPEN_ANSWER = 1024  # tokens for which an answer without max_tokens is projected; it may grow past them
GROWTH_WAIT_S = 10.0
_AHEAD = 128  # tokens before the end of the grant, so that an answer comes in time


@dataclass(frozen=True)
class RowLengths:
    """What one row needs.

    ``least``: without so much it is not worth going on; ``expected``: what is projected where the grant could hold it;
    ``end``: it never grows longer; ``most``: no grant will ever hold more (None: not known).
    """

    least: int
    expected: int
    end: int
    most: int | None = None


def asked(row: RowLengths, longest: int | None) -> int | None:
    """The length for which a waiting row asks; None where the grant, which holds ``longest``, would do."""
    if longest is None or row.least <= longest:
        return None
    return max(row.least, _at_most(row.expected, row.most))


def asked_ahead(row: RowLengths, held: int, longest: int | None) -> int | None:
    """The length for which a row that runs alone, with ``held`` tokens, asks; None where it need not, or in vain."""
    if longest is None or min(held + _AHEAD, row.end) <= longest:
        return None
    wanted = _at_most(min(row.end, max(row.expected, held + OPEN_ANSWER)), row.most)
    return wanted if wanted > longest else None


def _at_most(length: int, most: int | None) -> int:
    return length if most is None else min(length, most)
