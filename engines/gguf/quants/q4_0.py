"""Q4_0: 32 weights, one scale, 4 bits each around 8."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half

__all__ = ["Q4_0"]


class Q4_0(BlockType):
    """Block: float16 scale d; 16 bytes of codes, weight i in the low nibble of byte i, weight 16 + i in its high one.

    weight = d × (code - 8).
    """

    name = "Q4_0"
    ggml_id = 2
    block_size = 32
    block_bytes = 18

    def planes(self, blocks: Any, xp: Any) -> Planes:
        packed = gathered(blocks[..., None, 2:18], xp)
        low, high = packed & 15, packed >> 4
        return Planes((low.view(xp.int8) - 8, high.view(xp.int8) - 8), half(blocks, 0, xp), None)
