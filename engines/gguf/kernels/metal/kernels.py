"""Kernels of our own for Apple GPUs, one source for every type: ``../source`` reads a weight.

``multiply``: a SIMD group of 32 lanes takes a row of weights and up to 8 rows of activations; lanes take columns in turn, so
that neighbours read neighbouring bytes, and their sums are added at the end. ``dequantize``: a thread a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, cast

import mlx.core as mx

from engines.gguf.kernels.source import inlined
from engines.gguf.quants import QuantType

__all__ = ["MOST_ROWS", "dequantize", "multiply"]

MOST_ROWS: Final = 8
"""Rows of activations that ``multiply`` takes at once."""

_SOURCE = "engines.gguf.kernels.source"
_LANES = 32
_GROUPS = 4  # SIMD groups, so rows of weights, a thread group
_THREADS = 256

_PRELUDE = """
#define KQ_FN inline
#define KQ_BYTES const device unsigned char*
#define KQ_TABLE constant
inline float kq_half_bits(unsigned short bits) { return float(as_type<half>(bits)); }
inline float kq_float_bits(unsigned int bits) { return as_type<float>(bits); }
"""

_MULTIPLY = """
  const int m = x_shape[0], k = x_shape[1], n = blocks_shape[0], row_bytes = blocks_shape[1];
  const int row = thread_position_in_grid.x / 32, lane = thread_position_in_grid.x % 32;
  if (row >= n) return;
  const device unsigned char* weights = blocks + size_t(row) * row_bytes;
  float sums[ROWS];
  for (int r = 0; r < ROWS; r++) sums[r] = 0;
  for (int column = lane; column < k; column += 32) {
    const float weight = READ(weights, column);
    for (int r = 0; r < ROWS; r++) sums[r] += weight * float(x[size_t(min(r, m - 1)) * k + column]);
  }
  for (int r = 0; r < ROWS; r++) {
    const float sum = simd_sum(sums[r]);
    if (lane == 0 && r < m) out[size_t(r) * n + row] = static_cast<T>(sum);
  }
"""

_DEQUANTIZE = """
  const int row_bytes = blocks_shape[1], columns = row_bytes / BLOCK_BYTES * BLOCK_SIZE;
  const int column = thread_position_in_grid.x, row = thread_position_in_grid.y;
  if (column < columns) {
    out[size_t(row) * columns + column] = static_cast<T>(READ(blocks + size_t(row) * row_bytes, column));
  }
"""


def multiply(x: mx.array, blocks: mx.array, quant: QuantType) -> mx.array:
    """x [m, columns], m at most :data:`MOST_ROWS`, times the transposed weights of ``blocks``: [m, rows] in the dtype of x."""
    m, rows = x.shape[0], blocks.shape[0]
    groups = -(-rows // _GROUPS)
    return _run(
        _kernel("multiply", _MULTIPLY, ("x", "blocks"), quant.name, quant),
        [x, blocks],
        [("T", x.dtype), ("ROWS", 1 if m == 1 else MOST_ROWS)],
        (groups * _GROUPS * _LANES, 1, 1),
        (_GROUPS * _LANES, 1, 1),
        (m, rows),
        x.dtype,
    )


def dequantize(blocks: mx.array, quant: QuantType, dtype: mx.Dtype) -> mx.array:
    """Weights of ``blocks`` [rows, row bytes] in ``dtype``, [rows, columns]."""
    rows, columns = blocks.shape[0], quant.columns(blocks.shape[1])
    return _run(
        _kernel("dequantize", _DEQUANTIZE, ("blocks",), quant.name, quant),
        [blocks],
        [("T", dtype)],
        (-(-columns // _THREADS) * _THREADS, rows, 1),
        (_THREADS, 1, 1),
        (rows, columns),
        dtype,
    )


@cache
def _kernel(job: str, body: str, inputs: tuple[str, ...], name: str, quant: QuantType) -> Callable[..., Any]:
    read = f"kq_{name.lower()}"
    source = inlined(_SOURCE, "scalar.h")
    if f"float {read}(" not in source:
        source = inlined(_SOURCE, "octets.h")  # with tables that others need not carry
    for word, value in (
        ("READ", read),
        ("BLOCK_BYTES", str(quant.block_bytes)),
        ("BLOCK_SIZE", str(quant.block_size)),
    ):
        body = body.replace(word, value)
    made: Any = mx.fast.metal_kernel(
        name=f"kquant_{job}_{name}",
        input_names=list(inputs),
        output_names=["out"],
        source=body,
        header=_PRELUDE + source,
    )
    return cast(Callable[..., Any], made)


def _run(
    kernel: Callable[..., Any],
    inputs: list[mx.array],
    template: list[tuple[str, Any]],
    grid: tuple[int, int, int],
    threads: tuple[int, int, int],
    shape: tuple[int, ...],
    dtype: mx.Dtype,
) -> mx.array:
    outputs: list[mx.array] = kernel(
        inputs=inputs,
        template=template,
        grid=grid,
        threadgroup=threads,
        output_shapes=[shape],
        output_dtypes=[dtype],
    )
    return outputs[0]
