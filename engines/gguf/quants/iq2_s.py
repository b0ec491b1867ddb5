"""IQ2_S: 256 weights in 16 groups of 16; 4-bit scales under a float16 factor, eight weights at a time from a grid, and signs."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half
from engines.gguf.quants.lookup import fields, grid, looked_up, negated

__all__ = ["IQ2_S"]


class IQ2_S(BlockType):
    """Block: float16 d; 32 bytes, the low eight bits of the index of 8 weights each; 32 bytes of signs; 8 bytes with the
    indices' two top bits, the first in the lowest; 8 bytes of scales, the even group's in the low nibble.

    weight = (d × (0.5 + scale) × 0.25) × ±grid[index].
    """

    name = "IQ2_S"
    ggml_id = 22
    block_size = 256
    block_bytes = 82

    def planes(self, blocks: Any, xp: Any) -> Planes:
        top = fields(gathered(blocks[..., 66:74], xp), 2, 4, xp)
        index = blocks[..., 2:34].astype(xp.uint16) | (top.astype(xp.uint16) << 8)
        codes = looked_up(grid("iq2_s"), index, xp).reshape(*blocks.shape[:-1], 1, 256)
        codes = negated(codes, gathered(blocks[..., 34:66], xp), xp)
        scale = fields(gathered(blocks[..., 74:82], xp), 4, 2, xp).astype(xp.float32)
        return Planes((codes,), half(blocks, 0, xp) * (scale + 0.5) * 0.25, None)
