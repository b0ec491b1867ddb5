"""The kernels of ``attention.cuh`` as a function of MLX arrays, to be traced once (``engines.gguf.compiled_block``)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import mlx.core as mx

from engines.gguf.kernels.cuda.launch import HALVES, kernel

__all__ = ["attended", "attends"]

_WARPS = 8
_REGISTERS = 64  # floats of queries, and as many of sums, that a thread keeps
_MOST_FEATURES = 256
_SHARING = 8  # lanes a key, each with its part of the features
_KEYS_A_PART = 512  # at least: a second launch has to be worth it
_BLOCKS = 264  # two for each multiprocessor of an H200


def attends(dtype: mx.Dtype, features: int) -> bool:
    """Whether there is a kernel for heads of so many features."""
    return dtype in HALVES and features % 32 == 0 and features <= _MOST_FEATURES


def attended(
    queries: mx.array, keys: mx.array, values: mx.array, left: mx.array, used: mx.array, scale: float
) -> mx.array:
    """See ``LayerBackend.attend``; of what :func:`attends` says yes to."""
    rows, heads, _, features = queries.shape
    kv_heads, room = keys.shape[1:3]
    group = heads // kv_heads
    at_once = min(group, max(1, _REGISTERS * _SHARING // features))
    blocks = rows * kv_heads * -(-group // at_once)
    parts = max(1, min(-(-_BLOCKS // blocks), room // _KEYS_A_PART))
    shape = (features, at_once, heads, kv_heads)
    grid, threads = (parts * 32 * _WARPS, blocks, 1), (32 * _WARPS, 1, 1)
    inputs = [queries, keys, values, left, used]
    if parts == 1:
        whole = _attend(queries.dtype, shape, 1, scale)
        out: mx.array = whole(
            inputs=inputs, grid=grid, threadgroup=threads, output_shapes=[queries.shape], output_dtypes=[queries.dtype]
        )[0]
        return out
    partial = _attend(queries.dtype, shape, parts, scale)(
        inputs=inputs,
        grid=grid,
        threadgroup=threads,
        output_shapes=[(rows * heads, parts, features + 2)],
        output_dtypes=[mx.float32],
    )
    merged: mx.array = _merge(queries.dtype, features)(
        inputs=partial,
        grid=(rows * heads * features, 1, 1),
        threadgroup=(features, 1, 1),
        output_shapes=[queries.shape],
        output_dtypes=[queries.dtype],
    )[0]
    return merged


@cache
def _attend(dtype: mx.Dtype, shape: tuple[int, int, int, int], parts: int, scale: float) -> Callable[..., Any]:
    features, at_once, heads, kv_heads = shape
    outputs = "out, nullptr" if parts == 1 else f"({HALVES[dtype]}*)nullptr, out"
    body = (
        f"kq_attend<{HALVES[dtype]}, {features}, {at_once}, {_WARPS}, {str(parts > 1).lower()}>"
        f"(queries, keys, values, left, used, {outputs}, {heads}, {kv_heads}, keys_shape[2], {parts}, {scale!r}f);"
    )
    numbers = "_".join(map(str, (*shape, parts)))
    label = f"attend_{HALVES[dtype].strip('_')}_{numbers}_{''.join(c if c.isalnum() else '_' for c in repr(scale))}"
    shared = _WARPS * at_once * (features + 2) * 4
    return kernel(label, ["queries", "keys", "values", "left", "used"], body, 32 * _WARPS, shared)


@cache
def _merge(dtype: mx.Dtype, features: int) -> Callable[..., Any]:
    body = f"kq_attend_merge<{HALVES[dtype]}, {features}>(parts, out, parts_shape[1]);"
    return kernel(f"attend_merge_{HALVES[dtype].strip('_')}_{features}", ["parts"], body, features)
