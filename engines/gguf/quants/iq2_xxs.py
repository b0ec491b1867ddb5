"""IQ2_XXS: 256 weights in 8 groups of 32; 4-bit scales under a float16 factor, eight weights at a time from a grid, and signs."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half, words
from engines.gguf.quants.lookup import fields, grid, looked_up, negated, with_eighth

__all__ = ["IQ2_XXS", "scales_and_signs"]


class IQ2_XXS(BlockType):
    """Block: float16 d; two words a group: four indices of 8 weights, a byte each; scale and signs (:func:`scales_and_signs`).

    weight = (d × (0.5 + scale) × 0.25) × ±grid[index].
    """

    name = "IQ2_XXS"
    ggml_id = 16
    block_size = 256
    block_bytes = 66

    def planes(self, blocks: Any, xp: Any) -> Planes:
        pairs = words(blocks[..., 2:66], xp).reshape(*blocks.shape[:-1], 8, 2)
        scale, signs = scales_and_signs(pairs[..., 1], xp)
        index = gathered(blocks[..., 2:66].reshape(*blocks.shape[:-1], 8, 8)[..., 0:4], xp)
        codes = looked_up(grid("iq2_xxs"), index, xp).reshape(*blocks.shape[:-1], 1, 256)
        return Planes((negated(codes, signs, xp),), half(blocks, 0, xp) * (scale + 0.5) * 0.25, None)


def scales_and_signs(packed: Any, xp: Any) -> tuple[Any, Any]:
    """Of a word for each 32 weights, uint32 [..., n]: the top four bits as float32 [..., n]; and signs of 8 weights each,
    uint8 [..., 4 n], of which the word has seven bits a time from the lowest on
    (:func:`~engines.gguf.quants.lookup.with_eighth`)."""
    return (packed >> 28).astype(xp.float32), with_eighth(fields(packed, 7, 4, xp), xp)
