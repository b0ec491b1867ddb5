"""Q2_K: 256 weights in 16 groups of 16; 4-bit scales and minima under two float16 factors, 2 bits a weight."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half

__all__ = ["Q2_K", "bit_pairs"]


class Q2_K(BlockType):
    """Block: 16 bytes, group g's scale in the low nibble and its minimum in the high one of byte g; 64 bytes of codes
    (:func:`bit_pairs`); float16 d; float16 dmin.

    weight = (d × scale) × code - dmin × minimum.
    """

    name = "Q2_K"
    ggml_id = 10
    block_size = 256
    block_bytes = 84

    def planes(self, blocks: Any, xp: Any) -> Planes:
        packed = gathered(blocks[..., 0:16], xp)
        scales = half(blocks, 80, xp) * (packed & 15).astype(xp.float32)
        offsets = -half(blocks, 82, xp) * (packed >> 4).astype(xp.float32)
        return Planes(bit_pairs(blocks[..., 16:80], xp), scales, offsets)


def bit_pairs(field: Any, xp: Any) -> tuple[Any, ...]:
    """The four planes of 2-bit fields: uint8 ``[..., 64]`` to four of ``[..., 2, 32]``.

    32 bytes hold 128 weights: weight 32 j + l is bits 2 j and 2 j + 1 of byte l.
    """
    packed = gathered(field, xp).reshape(*field.shape[:-1], 2, 32)
    return packed & 3, (packed >> 2) & 3, (packed >> 4) & 3, packed >> 6
