"""Q5_1: 32 weights, one scale and one minimum, 5 bits each."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, bits, gathered, half

__all__ = ["Q5_1"]


class Q5_1(BlockType):
    """Block: float16 scale d; float16 minimum m; fifth bits and the other four, laid out as Q5_0's.

    weight = d × code + m.
    """

    name = "Q5_1"
    ggml_id = 7
    block_size = 32
    block_bytes = 24

    def planes(self, blocks: Any, xp: Any) -> Planes:
        packed = gathered(blocks[..., None, 8:24], xp)
        low = (packed & 15) | (bits(blocks[..., None, 4:6], xp) << 4)
        high = (packed >> 4) | (bits(blocks[..., None, 6:8], xp) << 4)
        return Planes((low, high), half(blocks, 0, xp), half(blocks, 2, xp))
