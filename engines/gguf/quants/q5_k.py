"""Q5_K: Q4_K with a fifth bit a weight."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Split, nibbles
from engines.gguf.quants.q4_k import scales_and_offsets

__all__ = ["Q5_K"]


class Q5_K(BlockType):
    """Block: 16 bytes as Q4_K's; 32 bytes of fifth bits, of weight 32 g + l in bit g of byte l; 128 bytes of the other
    four bits, laid out as Q4_K's.

    weight = (d × scale) × code - dmin × minimum.
    """

    name = "Q5_K"
    ggml_id = 13
    block_size = 256
    block_bytes = 176

    def split(self, blocks: Any, xp: Any) -> Split:
        scales, offsets = scales_and_offsets(blocks, xp)
        low = nibbles(blocks[..., 48:176].reshape(*blocks.shape[:-1], 4, 32), xp)
        fifth = blocks[..., 16:48]
        high = xp.stack([(fifth << (4 - g) if g < 4 else fifth >> (g - 4)) & 16 for g in range(8)], axis=-2)
        return Split(low.reshape(*blocks.shape[:-1], 8, 32) | high, scales, offsets)
