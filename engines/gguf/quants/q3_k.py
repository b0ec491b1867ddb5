"""Q3_K: 256 weights in 16 groups of 16; signed 6-bit scales under a float16 factor, 3 bits a weight."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Split, half
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

    def split(self, blocks: Any, xp: Any) -> Split:
        low = bit_pairs(blocks[..., 32:96], xp).reshape(*blocks.shape[:-1], 8, 32)
        third = blocks[..., 0:32]
        high = xp.stack([(third << (2 - s) if s < 2 else third >> (s - 2)) & 4 for s in range(8)], axis=-2)
        codes = (low | high).view(xp.int8) - 4
        scales = half(blocks, 108, xp) * _scales(blocks[..., 96:108], xp).astype(xp.float32)
        return Split(codes.reshape(*blocks.shape[:-1], 16, 16), scales, None)


def _scales(packed: Any, xp: Any) -> Any:
    """The 16 signed scales: uint8 ``[..., 12]`` to int8 ``[..., 16]``."""
    low = xp.concatenate([packed[..., 0:8] & 15, packed[..., 0:8] >> 4], axis=-1)
    upper = packed[..., 8:12]
    high = xp.concatenate([(upper << 4) & 48, (upper << 2) & 48, upper & 48, (upper >> 2) & 48], axis=-1)
    return (low | high).view(xp.int8) - 32
