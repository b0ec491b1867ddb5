"""IQ4_XS: 256 weights in 8 groups of 32; 6-bit scales under a float16 factor, 4 bits a weight that stand for 16 uneven steps."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half
from engines.gguf.quants.lookup import IQ4, fields, looked_up

__all__ = ["IQ4_XS"]


class IQ4_XS(BlockType):
    """Block: float16 d; 16 bits, of which 2 g and 2 g + 1 are the top bits of group g's scale; 4 bytes with the low four, the
    even group's in the low nibble; 128 bytes of codes, 16 a group, laid out as a block of IQ4_NL.

    weight = (d × (scale - 32)) × IQ4[code].
    """

    name = "IQ4_XS"
    ggml_id = 23
    block_size = 256
    block_bytes = 136

    def planes(self, blocks: Any, xp: Any) -> Planes:
        low = fields(gathered(blocks[..., 4:8], xp), 4, 2, xp)
        top = fields(gathered(blocks[..., 2:4], xp), 2, 4, xp)
        scales = half(blocks, 0, xp) * ((low | (top << 4)).view(xp.int8) - 32).astype(xp.float32)
        packed = gathered(blocks[..., 8:136], xp).reshape(*blocks.shape[:-1], 8, 16)
        return Planes((looked_up(IQ4, packed & 15, xp), looked_up(IQ4, packed >> 4, xp)), scales, None)
