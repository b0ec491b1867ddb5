"""The merges of a word by the cost of joining its pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf

__all__ = ["CACHED_LENGTH", "CACHED_PIECES", "CACHED_WORDS", "merged"]

CACHED_WORDS = 32768  # whose ids a model may keep
CACHED_LENGTH = 32  # characters of such a word: longer ones seldom come again
_SHORT = 64  # characters
CACHED_PIECES = 8192  # whose costs or ids a model may keep: words share most of them


def merged(word: str, cost: Callable[[str], float | None]) -> Iterable[str]:
    """The pieces that are left when the cheapest neighbours have been joined, the leftmost of equals, until none join.

    ``cost`` is asked for what two pieces make, and answers None if they do not join. Pieces are single characters at first.
    O(n log n) in the length of a long word, as each merge adds at most two candidates.
    """
    return _merged_short(word, cost) if len(word) <= _SHORT else _merged_long(word, cost)


def _merged_short(word: str, cost: Callable[[str], float | None]) -> list[str]:
    """By looking for the cheapest each time: quadratic, but a list's own search is fast."""
    pieces = list(word)
    prices = [_price(cost(left + right)) for left, right in pairwise(pieces)]
    while prices and (best := min(prices)) < inf:
        at = prices.index(best)
        piece = pieces[at] = pieces[at] + pieces.pop(at + 1)
        del prices[at]
        if at:
            prices[at - 1] = _price(cost(pieces[at - 1] + piece))
        if at < len(prices):
            prices[at] = _price(cost(piece + pieces[at + 1]))
    return pieces


def _price(cost: float | None) -> float:
    return inf if cost is None else cost


def _merged_long(word: str, cost: Callable[[str], float | None]) -> Iterator[str]:
    length = len(word)
    ends = list(range(1, length + 1))  # ends[i]: where the piece that begins at i ends; 0 once it is merged away
    starts = list(range(-1, length))  # starts[i]: where the piece that ends at i begins

    candidates: list[tuple[float, int, int, int]] = []  # cost, left, middle, right
    for middle in range(1, length):
        price = cost(word[middle - 1 : middle + 1])
        if price is not None:
            candidates.append((price, middle - 1, middle, middle + 1))
    heapify(candidates)
    while candidates:
        _, left, middle, right = heappop(candidates)
        if ends[left] != middle or ends[middle] != right:
            continue  # one of the two is no longer there
        ends[left], ends[middle] = right, 0
        starts[right] = left
        if left > 0:
            before = starts[left]
            price = cost(word[before:right])
            if price is not None:
                heappush(candidates, (price, before, left, right))
        if right < length:
            after = ends[right]
            price = cost(word[left:after])
            if price is not None:
                heappush(candidates, (price, left, right, after))

    place = 0
    while place < length:
        yield word[place : ends[place]]
        place = ends[place]
