"""Q6_K: 256 weights in 16 groups of 16; signed 8-bit scales under a float16 factor, 6 bits a weight."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Split, half, nibbles
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

    def split(self, blocks: Any, xp: Any) -> Split:
        low = nibbles(blocks[..., 0:128].reshape(*blocks.shape[:-1], 2, 64), xp)
        high = bit_pairs(blocks[..., 128:192], xp) << 4
        codes = (low.reshape(*blocks.shape[:-1], 2, 4, 32) | high).view(xp.int8) - 32
        scales = half(blocks, 208, xp) * blocks[..., 192:208].view(xp.int8).astype(xp.float32)
        return Split(codes.reshape(*blocks.shape[:-1], 16, 16), scales, None)
