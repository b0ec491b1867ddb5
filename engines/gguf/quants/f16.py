"""F16: IEEE half precision."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engines.gguf.quants.base import FloatType

__all__ = ["F16"]


class F16(FloatType):
    """Little-endian float16, as it is."""

    name = "F16"
    ggml_id = 1
    block_bytes = 2

    def dequantize_numpy(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        self.columns(rows.shape[-1])
        return np.ascontiguousarray(rows).view(np.float16).astype(np.float32)

    def dequantize(self, blocks: mx.array) -> mx.array:
        self.columns(blocks.shape[-1])
        return blocks.view(mx.float16).astype(mx.float32)
