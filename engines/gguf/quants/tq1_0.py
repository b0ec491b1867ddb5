"""TQ1_0: 256 weights of -1, 0 and 1 under one scale, five to a byte."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Planes, gathered, half

__all__ = ["TQ1_0"]


class TQ1_0(BlockType):
    """Block: 48 bytes of five digits of base 3 and 4 of four; float16 d. Bytes are fractions: times 3, the digit is what
    overflows into the ninth bit and up, and the rest has those that follow.

    Weights: the first digits of bytes 0 to 31, their second ones, and so on; then those of bytes 32 to 47; then of the last 4.
    weight = d × (digit - 1).
    """

    name = "TQ1_0"
    ggml_id = 34
    block_size = 256
    block_bytes = 54

    def planes(self, blocks: Any, xp: Any) -> Planes:
        parts = [
            gathered(blocks[..., start:stop], xp) * (3**digit)
            for start, stop, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4))
            for digit in range(digits)
        ]
        fractions = xp.concatenate(parts, axis=-1).astype(xp.uint16)
        codes = ((fractions * 3) >> 8).astype(xp.int8) - 1
        # One scale a group of 32, as others have.
        scales = xp.broadcast_to(half(blocks, 52, xp), (*blocks.shape[:-1], 8))
        return Planes((codes.reshape(*blocks.shape[:-1], 1, 256),), scales, None)
