"""The float16 factors that blocks begin or end with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["factor_bytes", "float16_factors"]


def float16_factors(values: NDArray[np.float32]) -> NDArray[np.float16]:
    """Values rounded to float16. ValueError when one overflows: the weights are too large for the type."""
    factors = values.astype(np.float16)
    if not np.isfinite(factors).all():
        raise ValueError(f"there are weights too large for it: a factor of {np.abs(values).max():.3g} is no float16")
    return factors


def factor_bytes(factors: NDArray[np.float16]) -> NDArray[np.uint8]:
    """One factor a block as uint8 ``[blocks, 2]``."""
    return factors.reshape(-1, 1).view(np.uint8)
