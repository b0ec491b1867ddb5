"""IQ1_M: 256 weights in 16 groups of 16; 3-bit scales under a float16 factor, eight weights at a time from a grid."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered
from engines.gguf.quants.iq1_s import shifted
from engines.gguf.quants.lookup import fields

__all__ = ["IQ1_M"]


class IQ1_M(BlockType):
    """Block: 32 bytes, the low eight bits of the index of 8 weights each; 16 bytes, a nibble for each index: its three top
    bits, and whether the shift is negative; four times 16 bits: the scales of four groups from the lowest bits on, and a
    nibble of the float16 d, whose lowest one comes first.

    weight = (d × (2 × scale + 1)) × (grid[index] ± 1/8).
    """

    name = "IQ1_M"
    ggml_id = 29
    block_size = 256
    block_bytes = 56

    def planes(self, blocks: Any, xp: Any) -> Planes:
        nibbles = fields(gathered(blocks[..., 32:48], xp), 4, 2, xp)
        index = blocks[..., 0:32].astype(xp.uint16) | ((nibbles & 7).astype(xp.uint16) << 8)
        codes = shifted(index, (nibbles >> 3).reshape(*nibbles.shape, 1), xp)
        packed = gathered(blocks[..., 48:56], xp).view(xp.uint16)
        scale = (fields(packed, 3, 4, xp) * 2 + 1).astype(xp.float32)
        top = packed & 0xF000
        d = (top[..., 0:1] >> 12) | (top[..., 1:2] >> 8) | (top[..., 2:3] >> 4) | top[..., 3:4]
        return Planes((codes,), d.view(xp.float16).astype(xp.float32) * scale * 0.125, None)
