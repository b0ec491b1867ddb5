"""Whose turn it is, and how many tokens a prefill chunk has.

A tick should last at most about a second on any device, so that a cancel is answered in time; and rows that decode should
not starve while a long prompt is read.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["FIRST_CHUNK", "LARGEST_CHUNK", "Pacer"]

TARGET_S = 0.7  # what a chunk aims at
LIMIT_S = 1.0  # what it may come to
# Tokens before anything is measured, and the fewest: the slowest device worth using does them in about 1 s. Where they take
# longer it is the pass that does, as on a machine that is busy with other things, and one token would take as long.
FIRST_CHUNK = 8
LARGEST_CHUNK = 2048  # tokens; more gains nothing on any device
_MOST_GROWTH = 4.0
_MOST_SHRINK = 1 / 8
_OVER_LEAST = 1.25  # a pass over the weights has its price however few the tokens; shorter chunks could not save it


class Pacer:
    """Alternates prefill and decode, and fits the chunk to the time measured. One for the whole life of an engine."""

    def __init__(self) -> None:
        self._chunk = float(FIRST_CHUNK)
        self._least_s: float | None = None  # about what a pass takes without its tokens: see observe
        self._prefilled_last = False

    @property
    def chunk_tokens(self) -> int:
        """Tokens of the next prefill chunk."""
        return int(self._chunk)

    def turn(self, *, prefilling: bool, decoding: bool) -> Literal["prefill", "decode"]:
        """Whose tick the next one is. At least one of the two must have work."""
        prefill = prefilling and not (decoding and self._prefilled_last)
        self._prefilled_last = prefill
        return "prefill" if prefill else "decode"

    def observe(self, tokens: int, seconds: float) -> None:
        """A prefill chunk of this many tokens lasted this long."""
        seconds = max(seconds, 1e-6)
        # The shortest chunk seen; but what the smallest takes is the price of a pass as it is now, when others have the device
        # too, however short passes once were.
        self._least_s = seconds if self._least_s is None or tokens == FIRST_CHUNK else min(seconds, self._least_s)
        stretched = _OVER_LEAST * self._least_s
        allowed = max(TARGET_S, min(stretched, LIMIT_S) if self._least_s <= LIMIT_S else stretched)
        # A prompt's last, short chunk says nothing about longer ones, unless even it was too long.
        if tokens >= self.chunk_tokens or seconds > allowed:
            factor = min(max(allowed / seconds, _MOST_SHRINK), _MOST_GROWTH)
            self._chunk = min(max(tokens * factor, float(FIRST_CHUNK)), float(LARGEST_CHUNK))
