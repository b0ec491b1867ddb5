"""IQ3_XXS: 256 weights in 8 groups of 32; 4-bit scales under a float16 factor, four weights at a time from a grid, and signs."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half, words
from engines.gguf.quants.iq2_xxs import scales_and_signs
from engines.gguf.quants.lookup import grid, looked_up, negated

__all__ = ["IQ3_XXS"]


class IQ3_XXS(BlockType):
    """Block: float16 d; 64 bytes, each the index of 4 weights; a word a group as IQ2_XXS's second
    (:func:`~engines.gguf.quants.iq2_xxs.scales_and_signs`).

    weight = (d × (0.5 + scale) × 0.5) × ±grid[index].
    """

    name = "IQ3_XXS"
    ggml_id = 18
    block_size = 256
    block_bytes = 98

    def planes(self, blocks: Any, xp: Any) -> Planes:
        scale, signs = scales_and_signs(words(blocks[..., 66:98], xp), xp)
        codes = looked_up(grid("iq3_xxs"), gathered(blocks[..., 2:66], xp), xp).reshape(*blocks.shape[:-1], 1, 256)
        return Planes((negated(codes, signs, xp),), half(blocks, 0, xp) * (scale + 0.5) * 0.5, None)
