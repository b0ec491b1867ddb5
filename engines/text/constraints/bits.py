"""Sets of tokens as llguidance writes them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bits", "bits_of"]

Bits = NDArray[np.int32]
"""(words,): bit ``t % 32`` of word ``t // 32`` is token ``t``."""


def bits_of(ids: Iterable[int], size: int) -> Bits:
    """The bits of these tokens, of a vocabulary of ``size``."""
    marked = np.zeros(-(-size // 32) * 32, np.bool_)
    marked[list(ids)] = True
    return np.packbits(marked, bitorder="little").view(np.int32)
