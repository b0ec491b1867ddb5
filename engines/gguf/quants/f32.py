"""F32: IEEE single precision."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engines.gguf.quants.base import FloatType

__all__ = ["F32"]


class F32(FloatType):
    """Little-endian float32, as it is."""

    name = "F32"
    ggml_id = 0
    block_bytes = 4

    def dequantize_numpy(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.columns(rows.shape[-1])
        return np.ascontiguousarray(rows).view(np.float32).astype(np.float32)

    def dequantize(self, blocks: mx.array) -> mx.array:
        self.columns(blocks.shape[-1])
        return blocks.view(mx.float32).astype(mx.float32)
