"""The back end for NVIDIA GPUs."""

from __future__ import annotations

from functools import cache, lru_cache

import mlx.core as mx

from engines.gguf.kernels.cuda.launch import HALVES, Launch, dequantized, gathered_product, narrowed, product
from engines.gguf.kernels.cuda.tile import DENSE_FROM, tile_for
from engines.gguf.kernels.portable import PortableBackend
from engines.gguf.quants import BlockType, QuantType

__all__ = ["CudaBackend"]

# Weights dequantised at a time for a dense product: 128 MiB of scratch.
TILE_WEIGHTS = 1 << 26


@cache
def capability() -> int:
    """Major compute capability of MLX's device: 8 has the tensor core instruction the kernels use, 9 the bulk copy engine."""
    return int(mx.device_info().get("compute_capability_major", 0))


@lru_cache(maxsize=4096)
def _fused(quant: QuantType, rows: int, columns: int, m: int, dtype: mx.Dtype) -> Launch:
    """The product of x [m, columns] with blocks of such a matrix."""
    tile = tile_for(quant, rows, columns, m, narrow=dtype == mx.bfloat16, bulk=capability() >= 9)
    if dtype != mx.bfloat16 or tile.narrowed:
        return product(quant, tile, m, rows, dtype, dtype)
    multiply = product(quant, tile, m, rows, mx.float16, dtype, factor=16.0)
    return lambda x, blocks: multiply(narrowed(x), blocks)


class CudaBackend:
    """float16 and bfloat16 activations on raw blocks; anything else as the portable back end does it.

    Up to :data:`~engines.gguf.kernels.cuda.tile.DENSE_FROM` rows of activations one kernel takes blocks apart in registers and
    multiplies on the tensor cores, float32 sums. From there on the weights are dequantised to scratch in the dtype of the
    activations and MLX's dense product does the rest: the scratch costs a fixed time, and the dense product is the faster one.
    """

    name = "cuda"
    lazy = True
    checks = False

    def __init__(self, tile_weights: int = TILE_WEIGHTS) -> None:
        self._tile_weights = tile_weights
        self._portable = PortableBackend()

    def available(self) -> bool:
        return mx.default_device().type == mx.DeviceType.gpu and mx.cuda.is_available() and capability() >= 8

    def set_cores(self, count: int) -> None:
        """The CPU only starts the kernels."""

    def multiply(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> mx.array:
        if x.dtype not in HALVES:
            return self._portable.multiply(x, blocks, quant, transpose)
        if transpose and x.shape[0] < DENSE_FROM and isinstance(quant, BlockType):
            return _fused(quant, blocks.shape[0], x.shape[1], x.shape[0], x.dtype)(x, blocks)
        return self._dense(x, blocks, quant, transpose)

    def rows(self, blocks: mx.array, ids: mx.array, quant: QuantType, dtype: mx.Dtype) -> mx.array:
        """Weights of the rows ``ids`` [...] names: ``dtype`` [..., columns]."""
        if not (isinstance(quant, BlockType) and dtype in HALVES) or ids.size == 0:
            return quant.dequantize(blocks[ids]).astype(dtype)
        flat = dequantized(blocks, quant, dtype, ids.reshape(-1).astype(mx.int32))
        return flat.reshape(*ids.shape, flat.shape[1])

    def multiply_experts(
        self, x: mx.array, blocks: mx.array, quant: QuantType, experts: mx.array, share: int
    ) -> mx.array | None:
        """Each pair's row times its expert's weights (see ``gathered_product``); None where there is no kernel for it."""
        if not isinstance(quant, BlockType) or x.dtype not in HALVES:
            return None
        return gathered_product(x, blocks, quant, experts.astype(mx.uint32), share)

    def weights(self, blocks: mx.array, quant: QuantType, dtype: mx.Dtype) -> mx.array:
        """All rows of ``blocks`` [rows, row bytes] in ``dtype``, [rows, columns]."""
        if not isinstance(quant, BlockType) or dtype not in HALVES:
            return quant.dequantize(blocks).astype(dtype)
        return dequantized(blocks, quant, dtype)

    def _dense(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> mx.array:
        rows = blocks.shape[0]
        tile = max(1, self._tile_weights // quant.columns(blocks.shape[1]))
        if rows <= tile:
            weights = self.weights(blocks, quant, x.dtype)
            return x @ (weights.T if transpose else weights)
        if transpose:
            parts = [x @ self.weights(blocks[at : at + tile], quant, x.dtype).T for at in range(0, rows, tile)]
            return mx.concatenate(parts, axis=1)
        out = mx.zeros((x.shape[0], quant.columns(blocks.shape[1])), mx.float32)
        for at in range(0, rows, tile):
            part = x[:, at : at + tile] @ self.weights(blocks[at : at + tile], quant, x.dtype)
            out = out + part.astype(mx.float32)
        return out.astype(x.dtype)
