"""The kernels as functions of MLX arrays; each is compiled at its first call in a process, if not before (``ahead.py``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, cast

import mlx.core as mx

from engines.gguf.kernels.cuda.ahead import made_by
from engines.gguf.kernels.cuda.kernel import Kernel
from engines.gguf.kernels.cuda.source import digest, included, whole
from engines.gguf.kernels.cuda.tile import UNIT, Tile
from engines.gguf.quants import QuantType

__all__ = [
    "HALVES",
    "Activations",
    "JointLaunch",
    "Launch",
    "dequantized",
    "forget",
    "gated_product",
    "gathered_product",
    "joined_product",
    "kernel",
    "narrowed",
    "product",
]

HALVES: Final[dict[mx.Dtype, str]] = {mx.float16: "__half", mx.bfloat16: "__nv_bfloat16"}
"""The dtypes of activations the kernels take, and their names in the source."""

_DEQUANTIZE_WARPS = 4
_NARROW_THREADS = 256
_GATHER_TILE = Tile(columns=1, rows=1, parties=4, members=1, stages=0, units=1, narrowed=0)
# Pairs that one thread block looks through for neighbours of the same expert. With few pairs the blocks are few, too, so
# each gets one.
_GATHER_GROUP = 32
_GATHER_ALONE = 128


Launch = Callable[..., mx.array]
JointLaunch = Callable[..., tuple[mx.array, ...]]


# A call of ``mx.fast.cuda_kernel`` puts the kernel's text together anew; ``mx.compile`` keeps what the first call made. One
# entry a shape.
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


@dataclass(frozen=True)
class Activations:
    """What a product takes and gives: ``leading`` axes before the columns, and the dtypes of both. Products are ``factor``
    times what they would be, since activations may come at a part of their value (:func:`narrowed`)."""

    leading: tuple[int, ...]
    taken: mx.Dtype
    given: mx.Dtype
    factor: float = 1.0

    def grid(self, tiles: int, tile: Tile) -> tuple[int, int, int]:
        """Threads of so many tiles of rows of weights."""
        return (tiles * tile.threads, -(-math.prod(self.leading) // (8 * tile.columns)), 1)


def product(quant: QuantType, tile: Tile, x: Activations, rows: int) -> Launch:
    """Of x [*leading, columns] and blocks [rows, row bytes]: x times the transposed weights, [*leading, rows]."""
    grid = x.grid(-(-rows // tile.height), tile)
    kernel = _product(quant.name, quant, tile, x.taken, x.given, x.factor)
    return _launch(kernel, grid, tile.threads, (*x.leading, rows), x.given)


def gated_product(quant: QuantType, tile: Tile, x: Activations, rows: int, activation: str) -> Launch:
    """Of x [*leading, columns] and two arrays of blocks [rows, row bytes], a gate's and an up projection's: the activation
    (``silu``, ``gelu`` or ``gelu_tanh``) of the gate times the projection, [*leading, rows]. The tile's members are even."""
    grid = x.grid(-(-rows // (tile.height // 2)), tile)
    kernel = _gated(quant.name, quant, tile, x.taken, x.given, x.factor, activation)
    return _launch(kernel, grid, tile.threads, (*x.leading, rows), x.given)


def joined_product(quant: QuantType, tile: Tile, x: Activations, rows: tuple[int, ...]) -> JointLaunch:
    """Of x [*leading, columns] and two or three arrays of blocks [rows[i], row bytes]: the product with each, in one launch."""
    grid = x.grid(sum(-(-each // tile.height) for each in rows), tile)
    kernel = _joined(quant.name, quant, tile, x.taken, x.given, x.factor, len(rows))
    shapes, dtypes = [(*x.leading, each) for each in rows], [x.given] * len(rows)

    def call(*inputs: mx.array) -> tuple[mx.array, ...]:
        outputs: list[mx.array] = kernel(
            inputs=list(inputs),
            grid=grid,
            threadgroup=(tile.threads, 1, 1),
            output_shapes=shapes,
            output_dtypes=dtypes,
        )
        return tuple(outputs)

    return cast(JointLaunch, mx.compile(call))


def gathered_product(x: mx.array, blocks: mx.array, quant: QuantType, experts: mx.array, share: int) -> mx.array:
    """Row p of the answer [pairs, rows]: row p // share of ``x`` times the weights of expert ``experts[p]`` (uint32).

    ``blocks`` is [experts, rows, row bytes]. Pairs of one expert that are neighbours cost little more than one.
    """
    pairs, rows = experts.shape[0], blocks.shape[1]
    group = 1 if pairs <= _GATHER_ALONE else _GATHER_GROUP
    grid = (-(-rows // _GATHER_TILE.height) * _GATHER_TILE.threads, -(-pairs // group), 1)
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


def forget() -> None:
    """Every kernel is made anew when it is next needed."""
    for kept in (_header, _product, _gated, _joined, _gathered, _dequantize, _narrow, _launch):
        kept.cache_clear()


@cache
def _header() -> str:
    """The short header where the run-time compiler can read the package's files, else their text. Asked once a process."""
    short = included()
    return short if short is not None and _compiles(short) else whole()


def _compiles(header: str) -> bool:
    # One thread that calls one function: all that is asked is whether the files were found.
    probe = _made("probe", header, ["bits"], ["out"], "out[0] = (int)kq_half_bits((unsigned short)bits[0]);", 1, 0)
    try:
        outputs = probe.launch(
            inputs=[mx.array([0x3C00])],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=[(1,)],
            output_dtypes=[mx.int32],
        )
        mx.eval(outputs)
    except RuntimeError:
        return False
    return True


def kernel(
    name: str, inputs: list[str], body: str, threads: int, shared: int = 0, outputs: Sequence[str] = ("out",)
) -> Kernel:
    """A kernel that calls the device source; ``threads`` are those of a thread block, ``shared`` its dynamic shared memory in
    bytes. MLX names what it is given: ``x``, ``x_shape`` and ``x_ndim``."""
    return _made(name, _header(), inputs, outputs, body, threads, shared)


def _made(
    name: str, header: str, inputs: list[str], outputs: Sequence[str], body: str, threads: int, shared: int
) -> Kernel:
    # MLX writes the kernel's signature itself, without launch bounds; the compiler then spends a fifth more registers than
    # leave room for three thread blocks where two fit. The source has no other kernel that the macro could reach.
    bounds = f"#undef __global__\n#define __global__ __attribute__((global)) __launch_bounds__({threads})\n"
    return Kernel(f"kquant_{digest()}{made_by()}_{name}", header + bounds, body, tuple(inputs), tuple(outputs), shared)


# Types are told apart by name: a QuantType has no state, and its hash is its identity.

_SHAPES = "kq_leading(x_shape, x_ndim), x_shape[x_ndim - 1]"


def _dtypes(x: mx.Dtype, out: mx.Dtype, factor: float) -> str:
    return f"{HALVES[x].strip('_')}_{HALVES[out].strip('_')}_{round(factor)}"


@cache
def _product(name: str, quant: QuantType, tile: Tile, x: mx.Dtype, out: mx.Dtype, factor: float) -> Callable[..., Any]:
    body = (
        f"kq_product<kq_{name}, {tile.source}>(x, blocks, out, {_SHAPES}, blocks_shape[0], blocks_shape[1], {factor}f);"
    )
    label = f"product_{name}_{tile.label}_{_dtypes(x, out, factor)}"
    return kernel(label, ["x", "blocks"], body, tile.threads, tile.shared_bytes(quant))


@cache
def _gated(
    name: str, quant: QuantType, tile: Tile, x: mx.Dtype, out: mx.Dtype, factor: float, activation: str
) -> Callable[..., Any]:
    body = (
        f"kq_gated<kq_{name}, {tile.source}, kq_{activation}>"
        f"(x, gate, up, out, {_SHAPES}, gate_shape[0], gate_shape[1], {factor}f);"
    )
    label = f"gated_{activation}_{name}_{tile.label}_{_dtypes(x, out, factor)}"
    return kernel(label, ["x", "gate", "up"], body, tile.threads, tile.shared_bytes(quant))


@cache
def _joined(
    name: str, quant: QuantType, tile: Tile, x: mx.Dtype, out: mx.Dtype, factor: float, count: int
) -> Callable[..., Any]:
    blocks, outputs = ["first", "second", "third"][:count], ["out", "out2", "out3"][:count]
    # Where there is no third matrix it has no rows, and whatever stands for it is not touched.
    missing = 3 - count
    body = (
        f"kq_joined<kq_{name}, {tile.source}>(x, {', '.join(blocks + ['first'] * missing)}, "
        f"{', '.join(outputs + ['out'] * missing)}, {_SHAPES}, "
        f"{', '.join([f'{each}_shape[0]' for each in blocks] + ['0'] * missing)}, first_shape[1], {factor}f);"
    )
    label = f"joined{count}_{name}_{tile.label}_{_dtypes(x, out, factor)}"
    return kernel(label, ["x", *blocks], body, tile.threads, tile.shared_bytes(quant), outputs)


@cache
def _gathered(name: str, quant: QuantType, dtype: mx.Dtype, share: int, group: int) -> Callable[..., Any]:
    body = (
        f"kq_gathered<kq_{name}, {_GATHER_TILE.source}>"
        f"(x, blocks, experts, out, experts_shape[0], {share}, {group}, x_shape[1], blocks_shape[1], blocks_shape[2]);"
    )
    label = f"gathered_{name}_{HALVES[dtype].strip('_')}_{share}_{group}"
    shared = _GATHER_TILE.shared_bytes(quant)
    return kernel(label, ["x", "blocks", "experts"], body, _GATHER_TILE.threads, shared)


@cache
def _dequantize(name: str, dtype: mx.Dtype, by_ids: bool) -> Callable[..., Any]:
    ids, count = ("ids", "ids_shape[0]") if by_ids else ("nullptr", "blocks_shape[0]")
    columns = f"blocks_shape[1] / kq_{name}::BLOCK_BYTES * kq_{name}::BLOCK"
    body = (
        f"kq_dequantize<kq_{name}, {HALVES[dtype]}, {_DEQUANTIZE_WARPS}>"
        f"(blocks, {ids}, out, {count}, {columns}, blocks_shape[1]);"
    )
    label = f"dequantize_{name}_{HALVES[dtype].strip('_')}" + "_ids" * by_ids
    inputs = ["blocks", "ids"] if by_ids else ["blocks"]
    return kernel(label, inputs, body, 32 * _DEQUANTIZE_WARPS)


@cache
def _narrow() -> Callable[..., Any]:
    body = "kq_narrow_all(x, out, (long long)kq_leading(x_shape, x_ndim) * x_shape[x_ndim - 1]);"
    return kernel("narrow", ["x"], body, _NARROW_THREADS)
