"""The merges of a word by the cost of joining its pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

__all__ = ["CACHED_LENGTH", "CACHED_PIECES", "CACHED_WORDS", "merged"]

CACHED_WORDS = 32768  # whose ids a model may keep
CACHED_LENGTH = 32  # characters of such a word: longer ones seldom come again
CACHED_PIECES = 8192  # whose costs or ids a model may keep: words share most of them


def merged(word: str, cost: Callable[[str], float | None]) -> Iterator[str]:
    """The pieces that are left when the cheapest neighbours have been joined, the leftmost of equals, until none join.

    ``cost`` is asked for what two pieces make, and answers None if they do not join. Pieces are single characters at first. O(n log n) in the length of the word, as each merge adds at most two candidates.
    """
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
