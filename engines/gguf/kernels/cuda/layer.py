"""The kernels of ``layer.cuh`` as functions of MLX arrays, to be traced once (``engines.gguf.compiled_block``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx

from engines.gguf.kernels.cuda.launch import HALVES, kernel
from engines.gguf.kernels.gathering import Rotation

__all__ = ["rotated", "sum_norm"]

_WARPS = 8
_COLUMNS = 256 * _WARPS  # that a thread block takes at a time, eight a thread
_MOST_PIECES = 4  # eight columns each, in a thread's registers
_ROTATE_THREADS = 128


def sum_norm(
    x: mx.array, r: mx.array, weight: mx.array, eps: float, inner: tuple[mx.array, float] | None
) -> tuple[mx.array, mx.array] | None:
    """See ``LayerBackend.sum_norm``. None for widths that are no multiple of 8 or wider than 8192, and for other dtypes."""
    width, dtype = x.shape[-1], x.dtype
    weights = [weight] if inner is None else [inner[0], weight]
    if (
        width % 8
        or width > _COLUMNS * _MOST_PIECES
        or dtype not in HALVES
        or any(w.dtype != dtype for w in (r, *weights))
    ):
        return None
    made = _sum_norm(dtype, -(-width // _COLUMNS), None if inner is None else inner[1], eps)
    outputs = made(
        inputs=[x, r, *weights],
        grid=(math.prod(x.shape[:-1]) * 32 * _WARPS, 1, 1),
        threadgroup=(32 * _WARPS, 1, 1),
        output_shapes=[x.shape, x.shape],
        output_dtypes=[dtype, dtype],
    )
    return outputs[0], outputs[1]


def rotated(
    queries: mx.array, keys: mx.array, offset: mx.array, rotation: Rotation
) -> tuple[mx.array, mx.array] | None:
    """See ``LayerBackend.rotate``."""
    rows, heads, tokens, features = queries.shape
    kv_heads = keys.shape[1]
    if tokens != 1 or queries.dtype not in HALVES or keys.dtype != queries.dtype or offset.dtype != mx.int32:
        return None
    wavelengths = rotation.wavelengths
    made = _rotate(
        queries.dtype,
        features,
        (rotation.dims, rotation.traditional, rotation.base, rotation.scale, rotation.magnitude),
        wavelengths is not None,
        heads,
        kv_heads,
        offset.size == 1,
    )
    threads = rows * (heads + kv_heads) * (features // 2)
    outputs = made(
        inputs=[queries, keys, offset.reshape(-1), *(() if wavelengths is None else (wavelengths,))],
        grid=(-(-threads // _ROTATE_THREADS) * _ROTATE_THREADS, 1, 1),
        threadgroup=(_ROTATE_THREADS, 1, 1),
        output_shapes=[queries.shape, keys.shape],
        output_dtypes=[queries.dtype, queries.dtype],
    )
    return outputs[0], outputs[1]


@cache
def _sum_norm(dtype: mx.Dtype, pieces: int, inner_eps: float | None, eps: float) -> Callable[..., Any]:
    has_inner = inner_eps is not None
    body = (
        f"kq_sum_norm<{HALVES[dtype]}, {_WARPS}, {pieces}, {str(has_inner).lower()}>"
        f"(x, r, {'inner' if has_inner else 'weight'}, weight, h, y, x_shape[x_ndim - 1], {inner_eps or 0.0!r}f, {eps!r}f);"
    )
    label = f"sum_norm_{HALVES[dtype].strip('_')}_{pieces}_{_named(inner_eps)}_{_named(eps)}"
    names = ["x", "r", "inner", "weight"] if has_inner else ["x", "r", "weight"]
    return kernel(label, names, body, 32 * _WARPS, 4 * _WARPS, ["h", "y"])


@cache
def _rotate(
    dtype: mx.Dtype,
    features: int,
    rotation: tuple[int, bool, float, float, float],
    has_wavelengths: bool,
    heads: int,
    kv_heads: int,
    one_position: bool,
) -> Callable[..., Any]:
    dims, traditional, base, scale, magnitude = rotation
    wavelengths = "wavelengths" if has_wavelengths else "nullptr"
    log2_base = 0.0 if has_wavelengths else math.log2(base)
    body = (
        f"const kq_rotation turn = {{{features}, {dims}, {wavelengths}, {log2_base!r}f, {scale!r}f, {magnitude!r}f}};\n"
        f"kq_rotate<{HALVES[dtype]}, {str(traditional).lower()}>(queries, keys, positions, queries_out, keys_out, "
        f"queries_shape[0], {heads}, {kv_heads}, {str(one_position).lower()}, turn);"
    )
    numbers = "_".join(map(_named, (features, dims, log2_base, scale, magnitude, heads, kv_heads)))
    flags = "".join(str(int(flag)) for flag in (traditional, has_wavelengths, one_position))
    label = f"rotate_{HALVES[dtype].strip('_')}_{numbers}_{flags}"
    names = ["queries", "keys", "positions", *(["wavelengths"] if has_wavelengths else [])]
    return kernel(label, names, body, _ROTATE_THREADS, 0, ["queries_out", "keys_out"])


def _named(value: float | None) -> str:
    """As a part of a name in C."""
    return "none" if value is None else "".join(c if c.isalnum() else "_" for c in repr(value))
