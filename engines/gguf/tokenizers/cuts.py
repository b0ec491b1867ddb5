"""Where a text may be cut before its merges, since no token reaches across."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from engines.gguf.tokenizers.texts import TokenTexts, code_points

__all__ = ["APART", "cutter"]

APART = "\ud800"  # stands between texts that are cut together: no text has it, since it is no character
_BITS = 20  # of a hash of two characters
_MIXED = np.uint32(2654435761)  # Knuth's multiplicative hash
_TOGETHER = 1 << 14  # tokens whose characters are laid out at a time


def cutter(texts: TokenTexts) -> Callable[[str], Iterator[str]]:
    """What cuts a text wherever no token of ``texts`` has its two neighbouring characters inside, and around each APART.

    Each merge makes a token, so none joins what is on both sides of such a place, and the parts may be merged one by one. Pairs
    of characters are kept by a hash of 20 bits: where two pairs share one, a text may be left whole that could be cut. 128 KiB
    and some 20 ms for 262k tokens. Threads may share it.
    """
    inside = np.zeros(1 << _BITS, np.bool_)
    for first in range(0, len(texts), _TOGETHER):
        points, starts = texts.characters(first, min(first + _TOGETHER, len(texts)))
        between = np.zeros(len(points) + 1, np.bool_)
        between[starts] = True
        inside[_pairs(points)[~between[1:-1]]] = True
    packed = np.packbits(inside)
    apart = np.uint32(ord(APART))

    def cut(text: str) -> Iterator[str]:
        if len(text) < 2:
            if text:
                yield text
            return
        points = code_points(text)
        pairs = _pairs(points)
        held = packed[pairs >> 3] >> (7 - (pairs & 7)).astype(np.uint8) & 1
        if APART in text:
            alone = points == apart
            held[alone[1:] | alone[:-1]] = 0
        start = 0
        for place in (np.flatnonzero(held == 0) + 1).tolist():
            yield text[start:place]
            start = place
        yield text[start:]

    return cut


def _pairs(points: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The hash of each two neighbouring characters."""
    return ((points[:-1] * np.uint32(0x1F35) + points[1:]) * _MIXED) >> np.uint32(32 - _BITS)
