"""BF16: the upper half of a float32."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engines.gguf.quants.base import FloatType

__all__ = ["BF16"]


class BF16(FloatType):
    """Little-endian bfloat16, which NumPy lacks: there the bits are moved into a float32."""

    name = "BF16"
    ggml_id = 30
    block_bytes = 2

    def dequantize_numpy(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.columns(rows.shape[-1])
        upper = np.ascontiguousarray(rows).view(np.uint16).astype(np.uint32)
        return (upper << 16).view(np.float32)

    def dequantize(self, blocks: mx.array) -> mx.array:
        self.columns(blocks.shape[-1])
        return blocks.view(mx.bfloat16).astype(mx.float32)
