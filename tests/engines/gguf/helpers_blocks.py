"""Random valid blocks of every quant type, for tests that need weights but no checkpoint."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from engines.gguf.quants import QuantType

__all__ = ["HALVES", "put_nibbles", "random_blocks"]

# Byte offsets of the float16 factors in a block of the types that have such; all other bytes may be anything.
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
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "IQ3_S": (0,),
    "IQ3_XXS": (0,),
    "IQ2_S": (0,),
    "IQ2_XS": (0,),
    "IQ2_XXS": (0,),
    "IQ1_S": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
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
    "IQ4_NL": 67.0,
    "IQ4_XS": 1245.0,
    "IQ3_S": 140.0,
    "IQ3_XXS": 142.0,
    "IQ2_S": 56.0,
    "IQ2_XS": 56.0,
    "IQ2_XXS": 53.0,
    "IQ1_S": 7.2,
    "IQ1_M": 7.2,
    "TQ1_0": 0.82,
    "TQ2_0": 1.1,
    "MXFP4": 5.6,
    "NVFP4": 5.6,
}


# What the scales of NVFP4 are, of bytes 0 to 126, in rising order.
_EIGHT_BITS = np.array([(8 * (e > 0) + m) * 2.0 ** (max(e, 1) - 11) for e in range(16) for m in range(8)][:127])


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
    middle = scale / _SPREAD[quant.name]
    if quant.name == "MXFP4":
        blocks[:, 0] = 128 + round(math.log2(middle)) + generator.integers(-1, 2, len(blocks))
    elif quant.name == "NVFP4":
        blocks[:, :4] = np.searchsorted(_EIGHT_BITS, generator.uniform(0.5, 1.5, (len(blocks), 4)) * middle)
    else:
        for at in HALVES.get(quant.name, (None,)):
            sign = generator.choice((-1.0, 1.0), len(blocks))
            factor = (sign * generator.uniform(0.5, 1.5, len(blocks)) * middle).astype(np.float16)
            if at is None:
                put_nibbles(blocks, factor)
            else:
                blocks[:, at : at + 2] = factor.view(np.uint8).reshape(-1, 2)
    return raw


def put_nibbles(blocks: NDArray[np.uint8], factor: NDArray[np.float16]) -> None:
    """Writes the factors of IQ1_M blocks [n, block bytes], a nibble in the upper half of every second byte of the last 8."""
    for i in range(4):
        blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (factor.view(np.uint16) >> 4 * i & 15) << 4
