"""The back end for Apple GPUs."""

from __future__ import annotations

import mlx.core as mx

from engines.gguf.kernels.metal import kernels
from engines.gguf.kernels.metal.library import KQuantLibrary, find_library
from engines.gguf.kernels.portable import PortableBackend
from engines.gguf.quants import BlockType, QuantType

__all__ = ["MetalBackend"]

HALVES = (mx.float16, mx.bfloat16)
TILE_WEIGHTS = 1 << 26  # dequantised at a time for a dense product


class MetalBackend:
    """float16 and bfloat16 by mlx-kquant where it takes the type, else by our own kernels; float32 the portable way.

    Not run on a device. ``repack`` is not chosen here: it replaces the blocks, which is the loader's to decide.
    """

    name = "metal"
    lazy = True
    checks = False

    def __init__(self, tile_weights: int = TILE_WEIGHTS) -> None:
        self._tile_weights = tile_weights
        self._portable = PortableBackend()
        self._library: KQuantLibrary | None = None
        self._looked = False

    def available(self) -> bool:
        return bool(mx.metal.is_available() and mx.default_device().type == mx.DeviceType.gpu)

    def set_cores(self, count: int) -> None:
        """The CPU only starts the kernels."""

    def multiply(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> mx.array:
        if x.dtype not in HALVES or not isinstance(quant, BlockType):
            return self._portable.multiply(x, blocks, quant, transpose)
        library = self._find()
        if library is not None and library.takes(quant):
            return library.multiply(x, blocks, quant, transpose)
        if transpose and x.shape[0] <= kernels.MOST_ROWS:
            return kernels.multiply(x, blocks, quant)
        return self._dense(x, blocks, quant, transpose)

    def _dense(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> mx.array:
        tile = max(1, self._tile_weights // quant.columns(blocks.shape[1]))
        parts = []
        for at in range(0, blocks.shape[0], tile):
            weights = kernels.dequantize(blocks[at : at + tile], quant, x.dtype)
            parts.append(x @ weights.T if transpose else (x[:, at : at + tile] @ weights).astype(mx.float32))
        if transpose:
            return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)
        return sum(parts[1:], start=parts[0]).astype(x.dtype)

    def _find(self) -> KQuantLibrary | None:
        if not self._looked:
            self._library, self._looked = find_library(), True
        return self._library
