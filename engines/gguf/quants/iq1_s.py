"""IQ1_S: 256 weights in 8 groups of 32; 3-bit scales under a float16 factor, eight weights at a time from a grid."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half
from engines.gguf.quants.lookup import fields, grid, looked_up

__all__ = ["IQ1_S", "shifted"]


class IQ1_S(BlockType):
    """Block: float16 d; 32 bytes, the low eight bits of the index of 8 weights each; 16 bits a group: the three top bits of
    its four indices, the first in the lowest, three bits of scale, and whether the shift is negative.

    weight = (d × (2 × scale + 1)) × (grid[index] ± 1/8).
    """

    name = "IQ1_S"
    ggml_id = 19
    block_size = 256
    block_bytes = 50

    def planes(self, blocks: Any, xp: Any) -> Planes:
        packed = gathered(blocks[..., 34:50], xp).view(xp.uint16)
        index = blocks[..., 2:34].astype(xp.uint16) | (fields(packed, 3, 4, xp) << 8)
        codes = shifted(index, (packed >> 15).reshape(*packed.shape, 1), xp)
        scale = (((packed >> 12) & 7) * 2 + 1).astype(xp.float32)
        return Planes((codes,), half(blocks, 0, xp) * scale * 0.125, None)


def shifted(index: Any, negative: Any, xp: Any) -> Any:
    """Eight times the grid's weights at ``index`` [..., 32], plus 1, or less 1 where ``negative`` is 1: int8 [..., 1, 256].

    ``negative`` is [..., shifts, 1] for equal parts of the 256 weights."""
    codes = looked_up(grid("iq1"), index, xp).reshape(*negative.shape[:-1], 256 // negative.shape[-2])
    codes = codes * 8 + (1 - 2 * negative.astype(xp.int8))
    return codes.reshape(*index.shape[:-1], 1, 256)
