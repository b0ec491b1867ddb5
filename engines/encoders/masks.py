"""Who sees whom in a batch of padded rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import mlx.core as mx

from engines.encoders.shape import Shape

__all__ = ["Masks", "alibi_slopes"]

_FAR = -1e9  # added to a score that does not count; finite, so that a row of padding gives no NaN


@dataclass
class Masks:
    """The masks of one batch, made once for each kind of layer. Rows are padded at their end to ``longest`` tokens.

    A mask is None where every token sees every other, bool (True: seen) or float32 (added), and broadcasts to [batch, heads,
    tokens, tokens]. A causal model needs none for the padding, which stands behind all that may look at it.
    """

    shape: Shape
    lengths: mx.array  # int32 [batch]
    longest: int
    padded: bool
    _made: dict[int | None, mx.array | None] = field(default_factory=dict)

    def of(self, window: int | None) -> mx.array | None:
        """For layers of this window."""
        window = None if window is not None and window >= self.longest - 1 else window
        if window not in self._made:
            self._made[window] = self._make(window)
        return self._made[window]

    def _make(self, window: int | None) -> mx.array | None:
        places = mx.arange(self.longest)
        real = places[None, None, None, :] < self.lengths[:, None, None, None] if self.padded else None
        seen = None if self.shape.causal else real
        if window is not None:
            # By comparisons: a table of distances takes four times the memory, and a row's charge has room for two of these.
            near = mx.logical_and(
                places[:, None] <= places[None, :] + window, places[None, :] <= places[:, None] + window
            )
            seen = near if seen is None else mx.logical_and(near, seen)
            if self.shape.causal:
                seen = mx.logical_and(seen, places[:, None] >= places[None, :])
            elif real is not None:  # padding far from all that is real sees itself: a row that sees nothing may be NaN
                seen = mx.logical_or(seen, places[:, None] == places[None, :])
        if not self.shape.alibi:
            return seen
        distance = mx.abs(places[:, None] - places[None, :]).astype(mx.float32)
        slopes = mx.array(alibi_slopes(self.shape.heads), mx.float32)
        bias = -slopes[None, :, None, None] * distance[None, None]
        return bias if seen is None else mx.where(seen, bias, _FAR)


def alibi_slopes(heads: int) -> list[float]:
    """A geometric sequence; where ``heads`` is no power of two, the next lower one's and every second of the next higher.

    Source: Press et al., 2021, "Train Short, Test Long", and its published code.
    """

    def of_power(count: int) -> list[float]:
        ratio = 2.0 ** -(2.0 ** -(math.log2(count) - 3))
        return [ratio ** (i + 1) for i in range(count)]

    power = 2 ** int(math.log2(heads))
    slopes = of_power(power)
    return slopes if power == heads else slopes + of_power(2 * power)[0::2][: heads - power]
