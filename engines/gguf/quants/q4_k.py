"""Q4_K: 256 weights in 8 groups of 32; 6-bit scales and minima under two float16 factors, 4 bits a weight."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Split, half, nibbles

__all__ = ["Q4_K", "scales_and_offsets"]


class Q4_K(BlockType):
    """Block: float16 d; float16 dmin; 12 bytes of scales and minima (:func:`scales_and_offsets`); 128 bytes of codes: 32 bytes
    hold two groups, the first in the low nibbles, the second in the high ones.

    weight = (d × scale) × code - dmin × minimum.
    """

    name = "Q4_K"
    ggml_id = 12
    block_size = 256
    block_bytes = 144

    def split(self, blocks: Any, xp: Any) -> Split:
        scales, offsets = scales_and_offsets(blocks, xp)
        codes = nibbles(blocks[..., 16:144].reshape(*blocks.shape[:-1], 4, 32), xp)
        return Split(codes.reshape(*blocks.shape[:-1], 8, 32), scales, offsets)


def scales_and_offsets(blocks: Any, xp: Any) -> tuple[Any, Any]:
    """d × scale and -dmin × minimum of the 8 groups, from the 16 bytes that Q4_K and Q5_K blocks begin with.

    Bytes 4 to 7 hold the scales of groups 0 to 3 in their low six bits, bytes 8 to 11 the minima. For groups 4 to 7, bytes
    12 to 15 hold the low four bits, scale in the low nibble and minimum in the high one; the upper two bits are the top bits
    of bytes 4 to 7 (scale) and 8 to 11 (minimum).
    """
    first, second, third = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scale = xp.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=-1)
    minimum = xp.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=-1)
    scales = half(blocks, 0, xp) * scale.astype(xp.float32)
    offsets = -half(blocks, 2, xp) * minimum.astype(xp.float32)
    return scales, offsets
