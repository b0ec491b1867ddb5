"""Q8_0: 32 weights, one scale, a signed byte each."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half

__all__ = ["Q8_0"]


class Q8_0(BlockType):
    """Block: float16 scale d; 32 signed bytes, in order.

    weight = d × code.
    """

    name = "Q8_0"
    ggml_id = 8
    block_size = 32
    block_bytes = 34

    def planes(self, blocks: Any, xp: Any) -> Planes:
        codes = gathered(blocks[..., None, 2:34], xp).view(xp.int8)
        return Planes((codes,), half(blocks, 0, xp), None)
