"""Q4_K: 256 weights in 8 groups of 32; 6-bit scales and minima under two float16 factors, 4 bits a weight."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half, words

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

    def planes(self, blocks: Any, xp: Any) -> Planes:
        scales, offsets = scales_and_offsets(blocks, xp)
        packed = gathered(blocks[..., 16:144], xp).reshape(*blocks.shape[:-1], 4, 32)
        return Planes((packed & 15, packed >> 4), scales, offsets)


def scales_and_offsets(blocks: Any, xp: Any) -> tuple[Any, Any]:
    """d × scale and -dmin × minimum of the 8 groups, from the 16 bytes that Q4_K and Q5_K blocks begin with.

    Bytes 4 to 7 hold the scales of groups 0 to 3 in their low six bits, bytes 8 to 11 the minima. For groups 4 to 7, bytes
    12 to 15 hold the low four bits, scale in the low nibble and minimum in the high one; the upper two bits are the top bits
    of bytes 4 to 7 (scale) and 8 to 11 (minimum). Four groups are read at a time, one in each byte of a word.
    """
    packed = words(blocks[..., 4:16], xp)
    first, second, third = packed[..., 0], packed[..., 1], packed[..., 2]
    scale = [first & 0x3F3F3F3F, (third & 0x0F0F0F0F) | ((first >> 2) & 0x30303030)]
    minimum = [second & 0x3F3F3F3F, ((third >> 4) & 0x0F0F0F0F) | ((second >> 2) & 0x30303030)]
    scales = half(blocks, 0, xp) * xp.stack(scale, axis=-1).view(xp.uint8).astype(xp.float32)
    offsets = -half(blocks, 2, xp) * xp.stack(minimum, axis=-1).view(xp.uint8).astype(xp.float32)
    return scales, offsets
