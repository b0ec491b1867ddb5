"""Q5_0: 32 weights, one scale, 5 bits each around 16."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, bits, gathered, half

__all__ = ["Q5_0"]


class Q5_0(BlockType):
    """Block: float16 scale d; a little-endian 32-bit word whose bit i is the fifth bit of weight i; 16 bytes of the other
    four bits, laid out as Q4_0's.

    weight = d × (code - 16).
    """

    name = "Q5_0"
    ggml_id = 6
    block_size = 32
    block_bytes = 22

    def planes(self, blocks: Any, xp: Any) -> Planes:
        packed = gathered(blocks[..., None, 6:22], xp)
        low = (packed & 15) | (bits(blocks[..., None, 2:4], xp) << 4)
        high = (packed >> 4) | (bits(blocks[..., None, 4:6], xp) << 4)
        return Planes((low.view(xp.int8) - 16, high.view(xp.int8) - 16), half(blocks, 0, xp), None)
