"""Where a text may be cut before its merges, since no token reaches across."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from engines.gguf.tokenizers.texts import TokenTexts

__all__ = ["cutter"]

_BITS = 20  # of a hash of two characters
_MIXED = np.uint32(2654435761)  # Knuth's multiplicative hash
_TOGETHER = 1 << 14  # tokens whose characters are laid out at a time


def cutter(texts: TokenTexts) -> Callable[[str], Iterator[str]]:
    """What cuts a text wherever no token of ``texts`` has its two neighbouring characters inside.

    Each merge makes a token, so none joins what is on both sides of such a place, and the parts may be merged one by one. Pairs
    of characters are kept by a hash of 20 bits: where two pairs share one, a text may be left whole that could be cut. 128 KiB
    and some 50 ms for 262k tokens. Threads may share it.
    """
    inside = np.zeros(1 << _BITS, np.bool_)
    encoded = list(texts.all_encoded())
    for start in range(0, len(encoded), _TOGETHER):
        joined = b"\n\0".join(encoded[start : start + _TOGETHER]).decode("utf-8", "replace")
        pairs = _pairs(joined)
        inside[pairs] = True
    packed = np.packbits(inside)

    def cut(text: str) -> Iterator[str]:
        if len(text) < 2:
            if text:
                yield text
            return
        pairs = _pairs(text)
        held = packed[pairs >> 3] >> (7 - (pairs & 7)).astype(np.uint8) & 1
        start = 0
        for place in (np.flatnonzero(held == 0) + 1).tolist():
            yield text[start:place]
            start = place
        yield text[start:]

    return cut


def _pairs(text: str) -> NDArray[np.uint32]:
    """The hash of each two neighbouring characters."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return ((points[:-1] * np.uint32(0x1F35) + points[1:]) * _MIXED) >> np.uint32(32 - _BITS)
