"""MXFP4: 32 weights of 4-bit floats under a power of two."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered
from engines.gguf.quants.lookup import E2M1, looked_up

__all__ = ["MXFP4"]


class MXFP4(BlockType):
    """Block: exponent e; 16 bytes of codes, weight i in the low nibble of byte i, weight 16 + i in its high one.

    weight = 2^(e - 128) × E2M1[code], E2M1 twice what the code stands for.
    """

    name = "MXFP4"
    ggml_id = 39
    block_size = 32
    block_bytes = 17

    def planes(self, blocks: Any, xp: Any) -> Planes:
        exponent = blocks[..., 0:1].astype(xp.uint32)
        # The exponent of a float32 is one less than e; where that would be none, its mantissa has the power of two.
        small = xp.array(0x200000, dtype=xp.uint32) << xp.minimum(exponent, 1)
        scales = xp.where(exponent < 2, small, (xp.maximum(exponent, 1) - 1) << 23).view(xp.float32)
        packed = gathered(blocks[..., None, 1:17], xp)
        return Planes((looked_up(E2M1, packed & 15, xp), looked_up(E2M1, packed >> 4, xp)), scales, None)
