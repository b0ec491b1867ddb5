"""TQ2_0: 256 weights of -1, 0 and 1 under one scale, 2 bits each."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, half
from engines.gguf.quants.q2_k import bit_pairs

__all__ = ["TQ2_0"]


class TQ2_0(BlockType):
    """Block: 64 bytes of codes, laid out as Q2_K's; float16 d.

    weight = d × (code - 1).
    """

    name = "TQ2_0"
    ggml_id = 35
    block_size = 256
    block_bytes = 66

    def planes(self, blocks: Any, xp: Any) -> Planes:
        codes = tuple(pair.view(xp.int8) - 1 for pair in bit_pairs(blocks[..., 0:64], xp))
        # One scale a group of 32, as others have.
        return Planes(codes, xp.broadcast_to(half(blocks, 64, xp), (*blocks.shape[:-1], 8)), None)
