"""Q3_K: 256 weights in 16 groups of 16; signed 6-bit scales under a float16 factor, 3 bits a weight."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half, words
from engines.gguf.quants.q2_k import bit_pairs

__all__ = ["Q3_K"]


class Q3_K(BlockType):
    """Block: 32 bytes of third bits, of weight 32 s + l in bit s of byte l; 64 bytes of the two lower bits, laid out as
    Q2_K's; 12 bytes of scales; float16 d.

    Scales are 6 bits: the low four of group g in the low nibble (g < 8) or the high one of byte g mod 8, the upper two in
    bits 2 (g div 4) and up of byte 8 + g mod 4.

    weight = (d × (scale - 32)) × (code - 4).
    """

    name = "Q3_K"
    ggml_id = 11
    block_size = 256
    block_bytes = 110

    def planes(self, blocks: Any, xp: Any) -> Planes:
        third = gathered(blocks[..., 0:32], xp)
        third = xp.stack([third, third >> 4], axis=-2)  # plane j's bit is now bit j in both chunks
        pairs = bit_pairs(blocks[..., 32:96], xp)
        codes = tuple((pair | (((third >> j) & 1) << 2)).view(xp.int8) - 4 for j, pair in enumerate(pairs))
        scales = half(blocks, 108, xp) * _scales(blocks[..., 96:108], xp).astype(xp.float32)
        return Planes(codes, scales, None)


def _scales(field: Any, xp: Any) -> Any:
    """The 16 signed scales: uint8 ``[..., 12]`` to int8 ``[..., 16]``; four at a time, one in each byte of a word."""
    packed = words(field, xp)
    upper = packed[..., 2]
    low = [packed[..., 0], packed[..., 1], packed[..., 0] >> 4, packed[..., 1] >> 4]
    scales = [(low[i] & 0x0F0F0F0F) | (((upper >> (2 * i)) & 0x03030303) << 4) for i in range(4)]
    return xp.stack(scales, axis=-1).view(xp.int8) - 32
