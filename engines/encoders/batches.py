"""Which rows go through the model together: by length, so that little is padding, and by turn, so that nobody waits for a long
neighbour. Numbers in, decisions out.

Turns: at every second batch the request that came first leads, at the others the one with the least left to do. So a short
request waits for one batch of another's at most, and a stream of short ones cannot starve a long one. Whatever its length
allows goes along, from whichever request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BatchLimits", "Pace", "cut_batch", "leader"]

PADDING_SHARE = 1 / 8  # of a batch's places, at most, unless
FREE_PADDING = 64  # tokens of it cost less than another pass over the weights


@dataclass(frozen=True)
class BatchLimits:
    """``places`` are rows × the longest."""

    rows: int
    places: int


def cut_batch(lengths: Sequence[int], lead: int, limits: BatchLimits) -> tuple[int, int]:
    """The slice [begin, end) of ``lengths``, ascending, that goes with ``lengths[lead]``: the lead alone where it is larger than
    the limits, else its neighbours, nearest first, as long as the limits and the bound on padding hold."""
    begin, end = lead, lead + 1
    total = lengths[lead]

    def fits(begin: int, end: int, total: int) -> bool:
        rows, longest = end - begin, lengths[end - 1]
        places = rows * longest
        padding = places - total
        return rows <= limits.rows and places <= limits.places and padding <= max(PADDING_SHARE * places, FREE_PADDING)

    below, above = begin > 0, end < len(lengths)
    while below or above:
        down = lengths[lead] - lengths[begin - 1] if below else None
        up = lengths[end] - lengths[lead] if above else None
        if down is not None and (up is None or down <= up):
            below = fits(begin - 1, end, total + lengths[begin - 1])
            if below:
                begin -= 1
                total += lengths[begin]
                below = begin > 0
        else:
            above = fits(begin, end + 1, total + lengths[end])
            if above:
                total += lengths[end]
                end += 1
                above = end < len(lengths)
    return begin, end


def leader(left: Sequence[int], turn: int) -> int:
    """Index of the request that leads batch number ``turn``; ``left`` are tokens to do, in order of arrival, none of them 0."""
    return 0 if turn % 2 == 0 else min(range(len(left)), key=left.__getitem__)


class Pace:
    """How many tokens a batch may have to last about ``seconds``, learned from the batches before."""

    def __init__(self, seconds: float, *, rate: float, least: int = 256, most: int = 1 << 16) -> None:
        """``rate`` is the first guess, in tokens a second."""
        self._seconds = seconds
        self._rate = rate
        self._least = least
        self._most = most

    @property
    def tokens(self) -> int:
        return max(self._least, min(self._most, int(self._rate * self._seconds)))

    def expected_s(self, tokens: int) -> float:
        return tokens / self._rate

    def took(self, tokens: int, seconds: float) -> None:
        """A batch of so many places took so long. One measurement counts a quarter; a batch of few tokens says little."""
        if tokens * 8 >= self.tokens and seconds > 0:
            self._rate += (min(tokens / seconds, 4 * self._rate) - self._rate) / 4
