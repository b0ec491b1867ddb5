"""Which shape a batch is computed in: how many rows of how many tokens, of which some are padding. Numbers in, decisions out.

On a CPU a batch has its own shape, and little padding. CUDA's attention is a graph that is built for each new shape, in 45 to 70 ms
on an H200, where a batch of a small model takes 4 ms, whatever its size up to 16,384 places. So texts go there in few batches of
few shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from engines.encoders.batches import BatchLimits, cut_batch

__all__ = ["BatchShapes", "ExactShapes", "FewShapes"]

_LENGTHS: Final = (16, 32, 48, 64, 96, 128, 192)  # then a power of two, and half as much again, in turn
_ROWS: Final = (1, 4, 16, 32, 64, 128, 256)  # where a batch's size matters little; then powers of two
_PADDING_SHARE: Final = 1 / 4  # of a batch's places, at most, unless they cost nothing
_USUAL_LENGTHS: Final = (16, 32, 48, 64, 128)
_LONG: Final = 512  # tokens: up to so many, texts that come alone are usual

LimitsOf = Callable[[int], BatchLimits]
"""What a batch may have whose rows are of so many tokens, padding included."""


class BatchShapes(Protocol):
    """Any thread."""

    def length(self, tokens: int) -> int:
        """What rows are padded to whose longest has ``tokens``."""
        ...

    def rows(self, count: int, length: int) -> int:
        """How many rows stand for ``count`` of this padded length; the rest are dummies."""
        ...

    def cut(self, lengths: Sequence[int], lead: int, limits_of: LimitsOf) -> tuple[int, int]:
        """The slice [begin, end) of ``lengths``, ascending, that goes with ``lengths[lead]``, which goes alone where it is larger
        than the limits."""
        ...

    def usual(self) -> Sequence[tuple[int, int]]:
        """Rows and length of what is worth being prepared for while a model loads."""
        ...


class ExactShapes:
    """Every batch in its own shape."""

    def length(self, tokens: int) -> int:
        return tokens

    def rows(self, count: int, length: int) -> int:
        return count

    def cut(self, lengths: Sequence[int], lead: int, limits_of: LimitsOf) -> tuple[int, int]:
        return cut_batch(lengths, lead, limits_of(lengths[lead]))

    def usual(self) -> Sequence[tuple[int, int]]:
        return ()


@dataclass(frozen=True)
class FewShapes:
    """Few lengths, few numbers of rows.

    Attributes:
        context: tokens that a row has at most, padding included: a model may have no positions behind them.
        width: rows of a batch at most.
        free_places: a batch of up to so many takes no longer than one of a single short row.
    """

    context: int
    width: int
    free_places: int

    def length(self, tokens: int) -> int:
        fixed = next((length for length in _LENGTHS if length >= tokens), 0)
        if not fixed:
            power = 1 << (tokens - 1).bit_length()
            fixed = power * 3 // 4 if tokens <= power * 3 // 4 else power
        return max(tokens, min(fixed, self.context))

    def rows(self, count: int, length: int) -> int:
        for free in _ROWS:
            if free >= count and free * length <= self.free_places:
                return max(count, min(free, self.width))
        return max(count, min(1 << (count - 1).bit_length(), self.width))

    def cut(self, lengths: Sequence[int], lead: int, limits_of: LimitsOf) -> tuple[int, int]:
        """First those that the lead's own length has room for, then longer ones; as far as there is little padding, or what there
        is costs less than another batch."""
        begin, end, total = lead, lead + 1, lengths[lead]
        best = begin, end
        top = self.length(lengths[lead])
        below = above = True  # whether there may be more on that side
        while True:
            more_above = above and end < len(lengths)
            more_below = below and begin > 0
            if not more_above and not more_below:
                return best
            up = more_above and (lengths[end] <= top or not more_below)
            first, last = (begin, end + 1) if up else (begin - 1, end)
            length = self.length(lengths[last - 1])
            limits = limits_of(length)
            places = self.rows(last - first, length) * length
            if last - first > limits.rows or places > limits.places:
                above, below = (False, below) if up else (above, False)
                continue
            total += lengths[end] if up else lengths[first]
            begin, end = first, last
            if places - total <= max(_PADDING_SHARE * places, self.free_places):
                best = begin, end

    def usual(self) -> Sequence[tuple[int, int]]:
        lengths = sorted({self.length(min(tokens, self.context)) for tokens in _USUAL_LENGTHS})
        batches = [(self.rows(rows, length), length) for length in lengths for rows in _ROWS if rows <= self.width]
        alone = [(1, self.length(min(tokens, self.context))) for tokens in (192, 256, 384, _LONG)]
        return list(dict.fromkeys(shape for shape in [*batches, *alone] if shape[0] * shape[1] <= self.free_places))
