"""Q4_1: 32 weights, one scale and one minimum, 4 bits each."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half

__all__ = ["Q4_1"]


class Q4_1(BlockType):
    """Block: float16 scale d; float16 minimum m; 16 bytes of codes, laid out as Q4_0's.

    weight = d × code + m.
    """

    name = "Q4_1"
    ggml_id = 3
    block_size = 32
    block_bytes = 20

    def planes(self, blocks: Any, xp: Any) -> Planes:
        packed = gathered(blocks[..., None, 4:20], xp)
        return Planes((packed & 15, packed >> 4), half(blocks, 0, xp), half(blocks, 2, xp))
