"""What a decode step would take with nothing beside it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QuietStep"]

_MEMORY = 256  # steps over which means are taken
_ENOUGH = 32  # steps from which a slope is believed
_OUTLIER = 3.0  # times what was expected: a pause of the machine, and no step


@dataclass(slots=True)
class _Mean:
    """Of the steps of so many rows."""

    steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0


class QuietStep:
    """A step of so many rows takes a time of its own, and each token that they attend over adds the same.

    Both are fitted by least squares to the steps that had nothing beside them, the newest of which weigh most. So a stream
    whose context grows is not taken for one that is held up.
    """

    def __init__(self) -> None:
        self._means: dict[int, _Mean] = {}
        self._tokens_squared = self._tokens_seconds = 0.0  # of what steps differ from their means by
        self._steps = 0

    def observe(self, rows: int, tokens: int, seconds: float) -> None:
        """A quiet step of so many rows, which attended over ``tokens`` in all, took so long."""
        expected, mean = self.expected(rows, tokens), self._means.get(rows)
        if not expected or mean is None or (mean.steps < _ENOUGH and _OUTLIER * seconds < mean.seconds):
            # The first step of so many rows may have had kernels to compile, and is no measure of those after it.
            mean = self._means[rows] = _Mean()
        else:
            seconds = min(seconds, _OUTLIER * expected)
        mean.steps = min(mean.steps + 1, _MEMORY)
        weight = 1 / mean.steps
        more_tokens, more_seconds = tokens - mean.tokens, seconds - mean.seconds
        mean.tokens += weight * more_tokens
        mean.seconds += weight * more_seconds
        self._steps = min(self._steps + 1, _MEMORY)
        kept = 1 - 1 / self._steps
        share = (1 - weight) / self._steps  # the first of so many rows differs from no mean
        self._tokens_squared = kept * self._tokens_squared + share * more_tokens**2
        self._tokens_seconds = kept * self._tokens_seconds + share * more_tokens * more_seconds

    def expected(self, rows: int, tokens: int) -> float | None:
        """Seconds of such a step; None where so many rows have not had a quiet one yet."""
        mean = self._means.get(rows)
        if mean is None:
            return None
        slope = 0.0
        if self._steps >= _ENOUGH and self._tokens_squared > 0 and mean.tokens > 0:
            # Tokens make no step shorter, and are at most all of what it takes.
            slope = min(max(self._tokens_seconds / self._tokens_squared, 0.0), mean.seconds / mean.tokens)
        return max(mean.seconds + slope * (tokens - mean.tokens), mean.seconds / 2)
