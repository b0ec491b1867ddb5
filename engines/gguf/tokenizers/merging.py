"""SentencePiece's merges of a whole text: of all neighbours that make a token the cheapest, the leftmost of equals, until none do.

Most merges cannot be told from the order in which they are made, so they are made at once, round after round. What joins
pieces a and b, at a price p, is **settled** if

1. neither a with its left neighbour costs p or less, nor b with its right neighbour less than p;
2. no run of pieces left of a that ends there can become one token at p or less and then join a at p or less; nor one right of
   b that begins there join b;
3. no token of the price p or less begins further left, where a piece begins, and ends with b; or ends further right, where a
   piece ends, and begins with a.

By 1 and 2, nothing takes a or b away before their turn comes. By 3, what becomes of them joins others at more than p only, so
that until their turn nothing else is chosen than would have been. So making settled merges early changes nothing in what one
merge at a time would make, and what no round settles is left to that. In a row of equal prices (``aaaa``) every second pair is
settled if the first is, each under 2 and 3. Run 2 is looked at only as far as some token reaches, and holds a pair of p or less,
which would have to come first.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engines.gguf.tokenizers.lexicon import Matches

__all__ = ["merged"]

_Places = NDArray[np.int64]
_Prices = NDArray[np.float32]

_FEW: Final = 256  # pairs, which are joined sooner one at a time than in rounds
_LEAST: Final = 32  # a round is worth its time if it settles one in so many pairs
_OUTSIDE: Final = 1 << 40  # a place far from any text


def merged(length: int, matches: Matches, costs: _Prices) -> tuple[_Places, NDArray[np.int32]]:
    """Where the pieces of a text begin, and the id of each, -1 for a character that is no token.

    ``length`` in characters; ``matches`` are all tokens in it, ``costs`` what making the token of each id costs, finite, behind
    an infinite one. O(n log n) however few merges settle, as a round settles its part of the open pairs and a piece grows no
    longer than a token; for each character some 100 bytes, four for each character of the longest token found, and 16 for each
    token that begins there.
    """
    board = _Board(length, matches, costs)
    del matches
    # Boundaries between pieces, the text's ends among them, and one far off on either side. A boundary's price is that of joining
    # what is left and right of it.
    places = np.concatenate(([-_OUTSIDE], np.arange(length + 1), [_OUTSIDE]))
    prices = np.full(length + 3, inf, np.float32)
    if length > 1:
        prices[2:-2] = board.costs_between(places[1:-3], places[3:-1])
    while (open_pairs := np.count_nonzero(prices < inf)) > _FEW:
        joined = _settled(board, places, prices)
        if len(joined) * _LEAST < open_pairs:
            break
        kept = np.ones(len(places), np.bool_)
        kept[joined] = False
        places, prices = places[kept], prices[kept]
        left = joined - np.arange(1, len(joined) + 1)  # of each new piece
        for at in (left, left + 1):
            prices[at] = board.costs_between(places[at - 1], places[at + 1])
    if open_pairs:
        places = _one_by_one(board, places, prices)
    starts = places[1:-2]
    return starts, board.ids_between(starts, places[2:-1])


class _Board:
    """What lies between any two places of a text."""

    def __init__(self, length: int, matches: Matches, costs: _Prices) -> None:
        starts, lengths, ids = matches
        self._costs = costs
        self._longest = int(lengths[-1]) if len(lengths) else 1
        self._width = self._longest + 1
        # By place and length: one more than the id of the token. Length 0 stands for what is no token.
        self._numbers = np.zeros(length * self._width + 1, np.int32)
        # How far the longest token reaches that begins or ends at a place: the longer ones are written last.
        self.reach_right, self.reach_left = np.zeros(length + 1, np.int64), np.zeros(length + 1, np.int64)
        bounds = np.searchsorted(lengths, np.arange(1, self._width + 1)).tolist()
        for reach, (first, last) in enumerate(pairwise(bounds), start=1):
            begins = starts[first:last].astype(np.int64)
            self._numbers[begins * self._width + reach] = ids[first:last] + 1
            self.reach_right[begins] = reach
            self.reach_left[begins + reach] = reach

    def costs_between(self, starts: _Places, ends: _Places) -> _Prices:
        """Infinite where that is no token."""
        return self._costs.take(self._numbers.take(self._index(starts, ends)))

    def ids_between(self, starts: _Places, ends: _Places) -> NDArray[np.int32]:
        """-1 where that is no token."""
        return self._numbers.take(self._index(starts, ends)) - 1

    def cost_between(self, start: int, end: int) -> float:
        if end - start > self._longest:
            return inf
        return self._costs.item(self._numbers.item(start * self._width + end - start))

    def _index(self, starts: _Places, ends: _Places) -> _Places:
        lengths = ends - starts
        return np.where(lengths <= self._longest, starts * self._width + lengths, 0)


def _settled(board: _Board, places: _Places, prices: _Prices) -> _Places:
    """The boundaries whose merges are settled, ascending; no two are neighbours."""
    before, here, after = prices[:-2], prices[1:-1], prices[2:]
    equal = (here == before) & (here < inf)
    if not equal.any():
        joints = np.flatnonzero((here < before) & (here <= after)) + 1
        return joints[_free(board, places, prices, joints)]
    # The first of each row of equal prices, and its every second.
    order = np.arange(len(here))
    first = np.maximum.accumulate(np.where(equal, 0, order))
    chosen = (here < inf) & (here < before[first]) & (here <= after) & ((order - first) % 2 == 0)
    joints = np.flatnonzero(chosen)
    free = _free(board, places, prices, joints + 1)
    # None after one of its row that is not free.
    bound = np.cumsum(~free)
    rows = np.searchsorted(joints, first[joints])
    return joints[bound == bound[rows] - ~free[rows]] + 1


def _free(board: _Board, places: _Places, prices: _Prices, joints: _Places) -> NDArray[np.bool_]:
    """Which of the boundaries hold to 2 and 3."""
    free = np.ones(len(joints), np.bool_)
    for step in (-1, 1):
        _forbid(board, places, prices, joints, free, step)
    return free


def _forbid(
    board: _Board, places: _Places, prices: _Prices, joints: _Places, free: NDArray[np.bool_], step: int
) -> None:
    """Clears ``free`` where something to the left (``step`` -1) or to the right (1) of the two pieces forbids to join them."""
    asked: _Places = np.flatnonzero(free)
    joints = joints[asked]
    price, middle = prices.take(joints), places.take(joints)
    near, far = places.take(joints + step), places.take(joints - step)
    reach = board.reach_left if step < 0 else board.reach_right
    # Tokens end at ``middle`` or at ``far``; beyond these distances from ``near`` none begins.
    most: _Places = np.maximum(reach.take(middle) - abs(near - middle), reach.take(far) - abs(near - far))
    cheapest: _Prices = np.full(len(asked), inf, np.float32)  # pair of the run between ``near`` and ``place``
    at = joints + step

    def between(one: _Places, other: _Places) -> _Prices:
        return board.costs_between(one, other) if step < 0 else board.costs_between(other, one)

    while True:
        at = at + step
        place = places.take(at)
        within = np.flatnonzero(abs(place - near) <= most)
        if not len(within):
            return
        if len(within) < len(at):
            price, cheapest = price.take(within), cheapest.take(within)
            asked, at, place, near, middle, far, most = (
                each.take(within) for each in (asked, at, place, near, middle, far, most)
            )
        forbidden = between(place, far) <= price
        threats = np.flatnonzero(cheapest <= price)
        if len(threats):
            begin, most_paid = place[threats], price[threats]
            forbidden[threats] |= (between(begin, middle[threats]) <= most_paid) & (
                between(begin, near[threats]) <= most_paid
            )
        if forbidden.any():
            free[asked[forbidden]] = False
            most[forbidden] = -1
        np.minimum(cheapest, prices.take(at), out=cheapest)


def _one_by_one(board: _Board, places: _Places, prices: _Prices) -> _Places:
    """The boundaries that are left when all pairs have been joined as they come."""
    where, paid = places.tolist(), prices.tolist()
    left, right = list(range(-1, len(where) - 1)), list(range(1, len(where) + 1))
    waiting = [(paid[joint], joint) for joint in np.flatnonzero(prices < inf).tolist()]
    heapify(waiting)
    kept = np.ones(len(where), np.bool_)
    while waiting:
        price, joint = heappop(waiting)
        if paid[joint] != price:
            continue  # one of the two is no longer what it was
        kept[joint], paid[joint] = False, inf
        before, after = left[joint], right[joint]
        right[before], left[after] = after, before
        for neighbour in (before, after):
            if 1 < neighbour < len(where) - 2:
                paid[neighbour] = price = board.cost_between(where[left[neighbour]], where[right[neighbour]])
                if price < inf:
                    heappush(waiting, (price, neighbour))
    return places[kept]
