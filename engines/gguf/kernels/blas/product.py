"""The product of activations with a tile of quantised rows, in NumPy.

For one row of activations the scales wait until the end: the bare codes of each group are multiplied with the activations
(one small BLAS product a group, over all rows of the tile), and a group's sum is scaled once. For more rows the codes are
scaled in place and one BLAS product does the rest. Offsets need only the sum of a group's activations, so they are a product
a 16th or 32nd the size. Codes stay in the order of their planes; the activations are put in that order instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engines.gguf.quants import BlockType, Planes, QuantType

__all__ = ["TileProduct"]

Floats = NDArray[np.float32]


class TileProduct:
    """Activations made ready once, to be multiplied with many tiles of rows of the same type. Threads may share it."""

    def __init__(self, x: Floats, quant: QuantType) -> None:
        """``x`` is [m, columns]."""
        self._x = x
        self._quant = quant
        # Filled in by the first tile, which shows how the type's planes lie. Benign if two threads do it at once.
        self._ordered: Floats | None = None
        self._sums: Floats | None = None

    def multiply(self, rows: NDArray[np.uint8], out: Floats) -> None:
        """Writes weights @ x.T into ``out`` [rows, m] for uint8 ``rows`` [rows, row bytes]."""
        if isinstance(self._quant, BlockType):
            self._multiply_planes(self._quant.planes(self._quant.blocked(rows), np), out)
        else:
            np.matmul(self._quant.dequantize_numpy(rows), self._x.T, out=out)

    def _multiply_planes(self, planes: Planes, out: Floats) -> None:
        codes, scales, offsets = planes
        rows, blocks, chunks, length = codes[0].shape
        groups = scales.shape[-1]
        group_size = len(codes) * chunks * length // groups
        run = min(group_size, length)  # neighbours in a plane that share a scale
        weights = np.empty((rows, len(codes), blocks * chunks * length), np.float32)
        for plane, plane_codes in enumerate(codes):
            weights[:, plane] = plane_codes.reshape(rows, -1)
        by_run = np.broadcast_to(
            scales.reshape(rows, blocks, chunks, -1, length // run), (rows, blocks, chunks, len(codes), length // run)
        )
        ordered = self._ordered_activations(blocks, chunks, len(codes), length)
        if len(self._x) == 1:
            runs = weights.reshape(rows, -1, run).transpose(1, 0, 2)
            sums = np.matmul(runs, ordered.reshape(-1, run, 1))[:, :, 0]
            np.einsum("tr,tr->r", sums, by_run.transpose(3, 1, 2, 4, 0).reshape(len(sums), rows), out=out[:, 0])
        else:
            weights.reshape(rows, -1, run)[...] *= by_run.transpose(0, 3, 1, 2, 4).reshape(rows, -1, 1)
            np.matmul(weights.reshape(rows, -1), ordered, out=out)
        if offsets is not None:
            out += offsets.reshape(rows, -1) @ self._group_sums(group_size)

    def _ordered_activations(self, blocks: int, chunks: int, planes: int, length: int) -> Floats:
        """[columns, m], the columns in the order of the planes."""
        if self._ordered is None:
            by_plane = self._x.reshape(-1, blocks, chunks, planes, length).transpose(3, 1, 2, 4, 0)
            self._ordered = np.ascontiguousarray(by_plane).reshape(-1, len(self._x))
        return self._ordered

    def _group_sums(self, group_size: int) -> Floats:
        """[groups of a row, m]: the sum of the activations of each group."""
        if self._sums is None:
            self._sums = np.ascontiguousarray(self._x.reshape(len(self._x), -1, group_size).sum(axis=-1).T)
        return self._sums
