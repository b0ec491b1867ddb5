"""Q5_1: 32 weights, one scale and one minimum, 5 bits each."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Split, half, nibbles
from engines.gguf.quants.q5_0 import fifth_bits

__all__ = ["Q5_1"]


class Q5_1(BlockType):
    """Block: float16 scale d; float16 minimum m; fifth bits and the other four, laid out as Q5_0's.

    weight = d × code + m.
    """

    name = "Q5_1"
    ggml_id = 7
    block_size = 32
    block_bytes = 24

    def split(self, blocks: Any, xp: Any) -> Split:
        low = nibbles(blocks[..., 8:24], xp).reshape(*blocks.shape[:-1], 32)
        codes = low | fifth_bits(blocks[..., 4:8], xp)
        return Split(codes.reshape(*blocks.shape[:-1], 1, 32), half(blocks, 0, xp), half(blocks, 2, xp))
