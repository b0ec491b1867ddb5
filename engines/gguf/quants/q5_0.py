"""Q5_0: 32 weights, one scale, 5 bits each around 16."""

from __future__ import annotations

from typing import Any

from engines.gguf.quants.base import BlockType, Split, half, nibbles

__all__ = ["Q5_0", "fifth_bits"]


class Q5_0(BlockType):
    """Block: float16 scale d; a little-endian 32-bit word whose bit i is the fifth bit of weight i; 16 bytes of the other
    four bits, laid out as Q4_0's.

    weight = d × (code - 16).
    """

    name = "Q5_0"
    ggml_id = 6
    block_size = 32
    block_bytes = 22

    def split(self, blocks: Any, xp: Any) -> Split:
        low = nibbles(blocks[..., 6:22], xp).reshape(*blocks.shape[:-1], 32)
        codes = (low | fifth_bits(blocks[..., 2:6], xp)).view(xp.int8) - 16
        return Split(codes.reshape(*blocks.shape[:-1], 1, 32), half(blocks, 0, xp), None)


def fifth_bits(word: Any, xp: Any) -> Any:
    """Bit i of the 4 bytes as 0 or 16 in byte i: uint8 ``[..., 4]`` to ``[..., 32]``."""
    bits = xp.stack([(word << (4 - i) if i < 4 else word >> (i - 4)) & 16 for i in range(8)], axis=-1)
    return bits.reshape(*word.shape[:-1], 32)
