"""How many tokens a prefill chunk has: fitted to the time measured, so that a cancel is answered in time on any device."""

from __future__ import annotations

__all__ = ["FIRST_CHUNK", "LARGEST_CHUNK", "LIMIT_S", "TARGET_S", "ChunkSize"]

TARGET_S = 0.7  # what a chunk aims at
LIMIT_S = 1.0  # what it may come to
# Tokens before anything is measured, and the fewest: the slowest device worth using does them in about 1 s. Where they take
# longer it is the pass that does, as on a machine that is busy with other things, and one token would take as long.
FIRST_CHUNK = 8
LARGEST_CHUNK = 2048  # tokens; more gains nothing on any device
_MOST_GROWTH = 4.0
_MOST_SHRINK = 1 / 8
_OVER_LEAST = 1.25  # a pass over the weights has its price however few the tokens; shorter chunks could not save it


class ChunkSize:
    """Of the next chunk. One for the whole life of an engine. ``target_s``: seconds, at most LIMIT_S."""

    def __init__(self, target_s: float = TARGET_S) -> None:
        self._target_s = target_s
        self._tokens = float(FIRST_CHUNK)
        self._least_s: float | None = None  # about what a pass takes without its tokens: see observe

    @property
    def tokens(self) -> int:
        return int(self._tokens)

    def observe(self, tokens: int, seconds: float) -> None:
        """A chunk of this many tokens lasted this long."""
        seconds = max(seconds, 1e-6)
        # The shortest chunk seen; but what the smallest takes is the price of a pass as it is now, when others have the device
        # too, however short passes once were.
        self._least_s = seconds if self._least_s is None or tokens == FIRST_CHUNK else min(seconds, self._least_s)
        stretched = _OVER_LEAST * self._least_s
        allowed = max(self._target_s, min(stretched, LIMIT_S) if self._least_s <= LIMIT_S else stretched)
        # A prompt's last, short chunk says nothing about longer ones, unless even it was too long.
        if tokens >= self.tokens or seconds > allowed:
            factor = min(max(allowed / seconds, _MOST_SHRINK), _MOST_GROWTH)
            self._tokens = min(max(tokens * factor, float(FIRST_CHUNK)), float(LARGEST_CHUNK))
