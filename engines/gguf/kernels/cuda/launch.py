"""The kernels as functions of MLX arrays; each is compiled by MLX at its first call, and kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Final, cast

import mlx.core as mx

from engines.gguf.kernels.cuda.source import header
from engines.gguf.kernels.cuda.tile import UNIT, Tile
from engines.gguf.quants import QuantType

__all__ = ["HALVES", "Launch", "dequantized", "gathered_product", "narrowed", "product"]

HALVES: Final[dict[mx.Dtype, str]] = {mx.float16: "__half", mx.bfloat16: "__nv_bfloat16"}
"""The dtypes of activations the kernels take, and their names in the source."""

_DEQUANTIZE_WARPS = 4
_NARROW_THREADS = 256
_GATHER_WARPS = 4
_GATHER_TILE = Tile(columns=1, rows=1, warps=_GATHER_WARPS, stages=0, units=1, narrowed=0)
# Pairs that one thread block looks through for neighbours of the same expert. With few pairs the blocks are few, too, so
# each gets one.
_GATHER_GROUP = 32
_GATHER_ALONE = 128


Launch = Callable[..., mx.array]


# A call of ``mx.fast.cuda_kernel`` puts the whole source together anew and hashes it, in which time a small product could have
# run more than once. ``mx.compile`` keeps what the first call made. One entry a shape.
@lru_cache(maxsize=4096)
def _launch(
    kernel: Callable[..., Any], grid: tuple[int, int, int], threads: int, shape: tuple[int, ...], dtype: mx.Dtype
) -> Launch:
    def call(*inputs: mx.array) -> mx.array:
        outputs: list[mx.array] = kernel(
            inputs=list(inputs), grid=grid, threadgroup=(threads, 1, 1), output_shapes=[shape], output_dtypes=[dtype]
        )
        return outputs[0]

    return cast(Launch, mx.compile(call))


def product(
    quant: QuantType, tile: Tile, leading: tuple[int, ...], rows: int, x: mx.Dtype, out: mx.Dtype, factor: float = 1.0
) -> Launch:
    """Of x [*leading, columns] and blocks [rows, row bytes]: factor × x times the transposed weights, [*leading, rows]."""
    grid = (-(-rows // (16 * tile.rows)) * tile.threads, -(-math.prod(leading) // (8 * tile.columns)), 1)
    return _launch(_product(quant.name, quant, tile, x, out, factor), grid, tile.threads, (*leading, rows), out)


def gathered_product(x: mx.array, blocks: mx.array, quant: QuantType, experts: mx.array, share: int) -> mx.array:
    """Row p of the answer [pairs, rows]: row p // share of ``x`` times the weights of expert ``experts[p]`` (uint32).

    ``blocks`` is [experts, rows, row bytes]. Pairs of one expert that are neighbours cost little more than one.
    """
    pairs, rows = experts.shape[0], blocks.shape[1]
    group = 1 if pairs <= _GATHER_ALONE else _GATHER_GROUP
    grid = (-(-rows // 16) * _GATHER_TILE.threads, -(-pairs // group), 1)
    kernel = _gathered(quant.name, quant, x.dtype, share, group)
    return _launch(kernel, grid, _GATHER_TILE.threads, (pairs, rows), x.dtype)(x, blocks, experts)


def dequantized(blocks: mx.array, quant: QuantType, dtype: mx.Dtype, ids: mx.array | None = None) -> mx.array:
    """Weights of all rows of ``blocks`` [rows, row bytes], or of those that ``ids`` (int32 [count]) names: [count, columns]."""
    count, columns = blocks.shape[0] if ids is None else ids.shape[0], quant.columns(blocks.shape[1])
    warps = -(-columns // UNIT) * -(-count // 8)
    threads = 32 * _DEQUANTIZE_WARPS
    grid = (-(-warps // _DEQUANTIZE_WARPS) * threads, 1, 1)
    launch = _launch(_dequantize(quant.name, dtype, ids is not None), grid, threads, (count, columns), dtype)
    return launch(blocks) if ids is None else launch(blocks, ids)


def narrowed(x: mx.array) -> mx.array:
    """bfloat16 activations [..., columns] as float16 at 1/16 of their value."""
    grid = (-(-x.size // (8 * _NARROW_THREADS)) * _NARROW_THREADS, 1, 1)
    return _launch(_narrow(), grid, _NARROW_THREADS, x.shape, mx.float16)(x)


def _kernel(name: str, inputs: list[str], body: str, threads: int, shared: int = 0) -> Callable[..., Any]:
    # MLX writes the kernel's signature itself, without launch bounds; the compiler then spends a fifth more registers than
    # leave room for three thread blocks where two fit. The source has no other kernel that the macro could reach.
    bounds = f"#undef __global__\n#define __global__ __attribute__((global)) __launch_bounds__({threads})\n"
    made: Any = mx.fast.cuda_kernel(
        name=name,
        input_names=inputs,
        output_names=["out"],
        source=body,
        header=header() + bounds,
        shared_memory=shared,
    )
    return cast(Callable[..., Any], made)


# Types are told apart by name: a QuantType has no state, and its hash is its identity.


@cache
def _product(name: str, quant: QuantType, tile: Tile, x: mx.Dtype, out: mx.Dtype, factor: float) -> Callable[..., Any]:
    shape = (tile.columns, tile.rows, tile.warps, tile.stages, tile.units, tile.narrowed)
    label = "_".join(map(str, (*shape, HALVES[x], HALVES[out], round(factor)))).replace("__", "")
    body = (
        f"kq_product<kq_{name}, {', '.join(map(str, shape))}>"
        f"(x, blocks, out, kq_leading(x_shape, x_ndim), x_shape[x_ndim - 1], blocks_shape[0], blocks_shape[1], {factor}f);"
    )
    return _kernel(f"kquant_product_{name}_{label}", ["x", "blocks"], body, tile.threads, tile.shared_bytes(quant))


@cache
def _gathered(name: str, quant: QuantType, x: mx.Dtype, share: int, group: int) -> Callable[..., Any]:
    body = (
        f"kq_gathered<kq_{name}, {_GATHER_TILE.rows}, {_GATHER_TILE.warps}>"
        f"(x, blocks, experts, out, experts_shape[0], {share}, {group}, x_shape[1], blocks_shape[1], blocks_shape[2]);"
    )
    label = f"{name}_{HALVES[x].strip('_')}_{share}_{group}"
    shared = _GATHER_TILE.shared_bytes(quant)
    return _kernel(f"kquant_gathered_{label}", ["x", "blocks", "experts"], body, _GATHER_TILE.threads, shared)


@cache
def _dequantize(name: str, dtype: mx.Dtype, by_ids: bool) -> Callable[..., Any]:
    ids, count = ("ids", "ids_shape[0]") if by_ids else ("nullptr", "blocks_shape[0]")
    columns = f"blocks_shape[1] / kq_{name}::BLOCK_BYTES * kq_{name}::BLOCK"
    body = (
        f"kq_dequantize<kq_{name}, {HALVES[dtype]}, {_DEQUANTIZE_WARPS}>"
        f"(blocks, {ids}, out, {count}, {columns}, blocks_shape[1]);"
    )
    label = f"{name}_{HALVES[dtype].strip('_')}" + "_ids" * by_ids
    inputs = ["blocks", "ids"] if by_ids else ["blocks"]
    return _kernel(f"kquant_dequantize_{label}", inputs, body, 32 * _DEQUANTIZE_WARPS)


@cache
def _narrow() -> Callable[..., Any]:
    return _kernel(
        "kquant_narrow",
        ["x"],
        "kq_narrow_all(x, out, (long long)kq_leading(x_shape, x_ndim) * x_shape[x_ndim - 1]);",
        _NARROW_THREADS,
    )
