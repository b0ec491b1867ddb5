"""IQ2_XS: 256 weights in 16 groups of 16; 4-bit scales under a float16 factor, eight weights at a time from a grid, and signs."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half
from engines.gguf.quants.lookup import fields, grid, looked_up, negated, with_eighth

__all__ = ["IQ2_XS"]


class IQ2_XS(BlockType):
    """Block: float16 d; 16 bits for each 8 weights, the index in the low nine and signs in the others
    (:func:`~engines.gguf.quants.lookup.with_eighth`); 8 bytes of scales, the even group's in the low nibble.

    weight = (d × (0.5 + scale) × 0.25) × ±grid[index].
    """

    name = "IQ2_XS"
    ggml_id = 17
    block_size = 256
    block_bytes = 74

    def planes(self, blocks: Any, xp: Any) -> Planes:
        packed = gathered(blocks[..., 2:66], xp).view(xp.uint16)
        codes = looked_up(grid("iq2_xs"), packed & 511, xp).reshape(*blocks.shape[:-1], 1, 256)
        codes = negated(codes, with_eighth(packed >> 9, xp), xp)
        scale = fields(gathered(blocks[..., 66:74], xp), 4, 2, xp).astype(xp.float32)
        return Planes((codes,), half(blocks, 0, xp) * (scale + 0.5) * 0.25, None)
