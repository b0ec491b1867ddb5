"""NVFP4: 64 weights of 4-bit floats in 4 groups of 16 under 8-bit floats."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.gguf.quants.base import BlockType, Planes, gathered
from engines.gguf.quants.lookup import E2M1, looked_up

__all__ = ["NVFP4"]


class NVFP4(BlockType):
    """Block: 4 scales, floats of four bits of exponent and three of mantissa without a sign; 32 bytes of codes, 8 a group,
    weight i of it in the low nibble of byte i, weight 8 + i in its high one.

    weight = scale / 2 × E2M1[code], E2M1 twice what the code stands for.
    """

    name = "NVFP4"
    ggml_id = 40
    block_size = 64
    block_bytes = 36

    def planes(self, blocks: Any, xp: Any) -> Planes:
        packed = gathered(blocks[..., 4:36], xp).reshape(*blocks.shape[:-1], 4, 8)
        codes = looked_up(E2M1, packed & 15, xp), looked_up(E2M1, packed >> 4, xp)
        table = _halved() if xp is np else xp.array(_halved())
        return Planes(codes, table[blocks[..., 0:4]], None)


@cache
def _halved() -> NDArray[np.float32]:
    """Half of what each byte stands for, float32 [256]. The top bit is not looked at, but that 0x7F, which is not a number,
    counts as 0."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, mantissa * 2.0**-10, (8 + mantissa) * 2.0 ** (exponent - 11))
    return np.where(code == 0x7F, 0, value).astype(np.float32)
