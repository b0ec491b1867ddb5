"""Q6_K: 256 weights in 16 groups of 16; signed 8-bit scales under a float16 factor, 6 bits a weight."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half
from engines.gguf.quants.q2_k import bit_pairs

__all__ = ["Q6_K"]


class Q6_K(BlockType):
    """Block: 128 bytes of the four lower bits; 64 bytes of the two upper ones, laid out as Q2_K's; 16 signed scales;
    float16 d.

    Of the lower bits, 64 bytes hold 128 weights: the first 64 in the low nibbles, the others in the high ones.

    weight = (d × scale) × (code - 32).
    """

    name = "Q6_K"
    ggml_id = 14
    block_size = 256
    block_bytes = 210

    def planes(self, blocks: Any, xp: Any) -> Planes:
        packed = blocks[..., 0:128].reshape(*blocks.shape[:-1], 2, 64)
        even, odd = gathered(packed[..., 0:32], xp), gathered(packed[..., 32:64], xp)
        low = (even & 15, odd & 15, even >> 4, odd >> 4)
        pairs = bit_pairs(blocks[..., 128:192], xp)
        codes = tuple((nibble | (pair << 4)).view(xp.int8) - 32 for nibble, pair in zip(low, pairs, strict=True))
        scales = half(blocks, 208, xp) * blocks[..., 192:208].view(xp.int8).astype(xp.float32)
        return Planes(codes, scales, None)
