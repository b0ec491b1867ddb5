"""Weights for the quantiser's tests, the same on every machine: made of integers and exact operations alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["golden_weights"]


def golden_weights() -> NDArray[np.float32]:
    """float32 ``[32, 512]``: heavy tails, scales from 2**-12 to 1, and rows of every awkward kind."""
    index = np.arange(32 * 512, dtype=np.uint64)
    mixed = (index * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)
    mixed = ((mixed ^ (mixed >> np.uint64(15))) * np.uint64(2246822519)) & np.uint64(0xFFFFFFFF)
    mixed ^= mixed >> np.uint64(13)
    uniform = ((mixed >> np.uint64(8)).astype(np.float64) / 2**23 - 1).reshape(32, 512)
    weights = (uniform**3 * 2.0 ** -np.arange(32)[:, None].astype(np.float64).clip(0, 12)).astype(np.float32)
    weights[20] = 0
    weights[21, :256] = 0.125
    weights[21, 256:] = -0.125
    weights[22] = np.abs(weights[22])
    weights[23] = -np.abs(weights[23])
    weights[24, 32:] = 0  # groups of zeros beside others
    weights[25] = np.float32(1e-17)
    weights[26, ::64] = 3.0  # outliers: the other groups' scales come near 0
    weights[27] = np.round(weights[27] * 4096 * 4) / 16  # few distinct values, and ties
    weights[28] = 0.25 + weights[28]
    return weights
