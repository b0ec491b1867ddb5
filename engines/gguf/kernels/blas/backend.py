"""The back end for the CPU that needs no compiler."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from engines.gguf.kernels.blas.blas_threads import use_one_thread
from engines.gguf.kernels.blas.product import TileProduct
from engines.gguf.kernels.blas.row_pool import RowPool, usable_cores
from engines.gguf.quants import QuantType

__all__ = ["BlasBackend"]

# Weights taken apart at a time by a thread, 2 MiB in float32: large beside the cost of some twenty NumPy calls, small beside
# the cache and the matrix.
TILE_WEIGHTS = 1 << 19
# A thread gets at least so many weights: below, waking it costs more than it does.
LEAST_WEIGHTS = 1 << 17
# From so many rows of activations on, the answer is written in its final layout; below, BLAS is faster in the other.
WIDE = 64


class BlasBackend:
    """Eager: evaluates its activations, computes in float32 and answers an array that needs no evaluation.

    The blocks and the activations are read where MLX holds them; only the answer is copied.
    """

    name = "blas"
    lazy = False
    checks = False

    def __init__(self, cores: int | None = None, tile_weights: int = TILE_WEIGHTS) -> None:
        self._pool = RowPool(usable_cores() if cores is None else cores)
        self._tile_weights = tile_weights
        self._limited = False

    def close(self) -> None:
        """Ends the threads."""
        self._pool.close()

    def available(self) -> bool:
        return mx.default_device().type == mx.cpu

    def set_cores(self, count: int) -> None:
        self._pool.resize(count)

    def multiply(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> mx.array:
        if not self._limited:
            use_one_thread()
            self._limited = True
        wide = x.astype(mx.float32)
        mx.eval(wide, blocks)
        return mx.array((self._by_columns if transpose else self._by_rows)(wide, blocks, quant)).astype(x.dtype)

    def _by_columns(self, wide: mx.array, blocks: mx.array, quant: QuantType) -> np.ndarray:
        """x [m, columns] times the transposed weights: [m, rows]."""
        x, raw = np.asarray(wide), np.asarray(blocks)
        product = TileProduct(x, quant)
        rows, m = len(raw), len(x)
        out = np.empty((m, rows), np.float32).T if m >= WIDE else np.empty((rows, m), np.float32)
        tile = max(1, self._tile_weights // x.shape[1])

        def work(start: int, stop: int) -> None:
            for at in range(start, stop, tile):
                end = min(at + tile, stop)
                product.multiply(raw[at:end], out[at:end])

        self._pool.run(work, rows, LEAST_WEIGHTS // x.shape[1])
        return np.ascontiguousarray(out.T)

    def _by_rows(self, wide: mx.array, blocks: mx.array, quant: QuantType) -> np.ndarray:
        """x [m, rows] times the weights: [m, columns]. Parts are summed in the order of their rows, whoever is first."""
        x, raw = np.asarray(wide), np.asarray(blocks)
        columns = quant.columns(raw.shape[1])
        tile = max(1, self._tile_weights // columns)
        sums: dict[int, np.ndarray] = {}

        def work(start: int, stop: int) -> None:
            total = np.zeros((len(x), columns), np.float32)
            for at in range(start, stop, tile):
                end = min(at + tile, stop)
                total += x[:, at:end] @ quant.dequantize_numpy(raw[at:end])
            sums[start] = total

        self._pool.run(work, len(raw), LEAST_WEIGHTS // columns)
        return sum((sums[start] for start in sorted(sums)[1:]), start=sums[0])
