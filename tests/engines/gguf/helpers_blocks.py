"""Random valid blocks of every quant type, for tests that need weights but no checkpoint."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engines.gguf.quants import QuantType

__all__ = ["HALVES", "random_blocks"]

# Byte offsets of the float16 factors in a block; all other bytes may be anything.
HALVES: dict[str, tuple[int, ...]] = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
}

# What a factor of 1 makes of random codes and scales, about: weights are divided by it, so that a random weight is near 1.
_SPREAD = {
    "Q2_K": 20.0,
    "Q3_K": 42.0,
    "Q4_K": 300.0,
    "Q5_K": 600.0,
    "Q6_K": 1400.0,
    "Q4_0": 4.6,
    "Q4_1": 8.0,
    "Q5_0": 9.2,
    "Q5_1": 16.0,
    "Q8_0": 74.0,
}


def random_blocks(
    quant: QuantType, rows: int | tuple[int, ...], columns: int, *, seed: int = 0, scale: float = 1.0
) -> NDArray[np.uint8]:
    """uint8 ``[*rows, row bytes]``: random codes under random finite factors of either sign.

    ``scale`` is about the standard deviation of the weights. ``columns`` must be whole blocks.
    """
    generator = np.random.default_rng(seed)
    shape = (rows,) if isinstance(rows, int) else rows
    if quant.name in ("F32", "F16", "BF16"):
        weights = (generator.standard_normal((*shape, columns)) * scale).astype(np.float32)
        if quant.name == "F16":
            return weights.astype(np.float16).view(np.uint8)
        if quant.name == "BF16":
            return np.ascontiguousarray(weights.view(np.uint16)[..., 1::2]).view(np.uint8)
        return weights.view(np.uint8)
    raw = generator.integers(0, 256, (*shape, quant.row_bytes(columns)), dtype=np.uint8)
    blocks = raw.reshape(-1, quant.block_bytes)
    for at in HALVES[quant.name]:
        sign = generator.choice((-1.0, 1.0), len(blocks))
        factor = sign * generator.uniform(0.5, 1.5, len(blocks)) * scale / _SPREAD[quant.name]
        blocks[:, at : at + 2] = factor.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return raw
