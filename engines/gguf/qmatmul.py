"""The one function that multiplies activations with K-quant blocks, whatever the device."""

from __future__ import annotations

import math

import mlx.core as mx

from engines.gguf.kernels import backend
from engines.gguf.quants import QuantType

__all__ = ["qmatmul"]


def qmatmul(x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool = True, *, lazy: bool = False) -> mx.array:
    """The product of ``x`` with the weights that ``blocks`` hold, as GGUF has them: weights are [rows, columns].

    ``x`` is floating, [..., columns] (``transpose``: the usual linear layer, ``x @ weights.T``, answers [..., rows]) or
    [..., rows] (``x @ weights``, answers [..., columns]). ``blocks`` is uint8 [rows, row bytes]. The answer has the dtype of
    ``x``; sums are float32. ValueError when shapes or dtypes do not fit.

    The back end is chosen by ``engines.gguf.kernels``. On the CPU the product may be computed within this call; with
    ``lazy`` it is not, for an answer that may never be looked at.
    """
    chosen = backend(lazy=lazy)
    if chosen.checks:
        return chosen.multiply(x, blocks, quant, transpose)
    if blocks.dtype != mx.uint8 or blocks.ndim != 2:
        raise ValueError(f"blocks must be uint8 [rows, row bytes], not {blocks.dtype} {blocks.shape}")
    if not mx.issubdtype(x.dtype, mx.floating):
        raise ValueError(f"activations must be floating, not {x.dtype}")
    rows, columns = blocks.shape[0], quant.columns(blocks.shape[1])
    taken, given = (columns, rows) if transpose else (rows, columns)
    if x.ndim == 0 or x.shape[-1] != taken:
        raise ValueError(f"activations {x.shape} do not fit {quant.name} weights [{rows}, {columns}]")
    shape = (*x.shape[:-1], given)
    if math.prod(shape) == 0 or taken == 0:
        return mx.zeros(shape, x.dtype)
    return chosen.multiply(x.reshape(-1, taken), blocks, quant, transpose).reshape(shape)
