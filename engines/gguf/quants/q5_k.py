"""Q5_K: Q4_K with a fifth bit a weight."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered
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

    def planes(self, blocks: Any, xp: Any) -> Planes:
        scales, offsets = scales_and_offsets(blocks, xp)
        packed = gathered(blocks[..., 48:176], xp).reshape(*blocks.shape[:-1], 4, 32)
        fifth = gathered(blocks[..., 16:48], xp)
        fifth = xp.stack(
            [fifth, fifth >> 2, fifth >> 4, fifth >> 6], axis=-2
        )  # plane p's bit is now bit p in each chunk
        low = (packed & 15) | ((fifth & 1) << 4)
        high = (packed >> 4) | ((fifth & 2) << 3)
        return Planes((low, high), scales, offsets)
