"""IQ4_NL: 32 weights, one scale, 4 bits each that stand for 16 uneven steps."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half
from engines.gguf.quants.lookup import IQ4, looked_up

__all__ = ["IQ4_NL"]


class IQ4_NL(BlockType):
    """Block: float16 scale d; 16 bytes of codes, weight i in the low nibble of byte i, weight 16 + i in its high one.

    weight = d × IQ4[code].
    """

    name = "IQ4_NL"
    ggml_id = 20
    block_size = 32
    block_bytes = 18

    def planes(self, blocks: Any, xp: Any) -> Planes:
        packed = gathered(blocks[..., None, 2:18], xp)
        codes = looked_up(IQ4, packed & 15, xp), looked_up(IQ4, packed >> 4, xp)
        return Planes(codes, half(blocks, 0, xp), None)
