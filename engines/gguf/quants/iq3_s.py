"""IQ3_S: 256 weights in 8 groups of 32; 4-bit scales under a float16 factor, four weights at a time from a grid, and signs."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, bits, gathered, half
from engines.gguf.quants.lookup import fields, grid, looked_up, negated

__all__ = ["IQ3_S"]


class IQ3_S(BlockType):
    """Block: float16 d; 64 bytes, the low eight bits of the index of 4 weights each; 8 bytes with the ninth bits; 32 bytes of
    signs; 4 bytes of scales, the even group's in the low nibble.

    weight = (d × (1 + 2 × scale)) × ±grid[index].
    """

    name = "IQ3_S"
    ggml_id = 21
    block_size = 256
    block_bytes = 110

    def planes(self, blocks: Any, xp: Any) -> Planes:
        index = blocks[..., 2:66].astype(xp.uint16) | (bits(blocks[..., 66:74], xp).astype(xp.uint16) << 8)
        codes = looked_up(grid("iq3_s"), index, xp).reshape(*blocks.shape[:-1], 1, 256)
        codes = negated(codes, gathered(blocks[..., 74:106], xp), xp)
        scale = fields(gathered(blocks[..., 106:110], xp), 4, 2, xp)
        return Planes((codes,), half(blocks, 0, xp) * (scale * 2 + 1).astype(xp.float32), None)
