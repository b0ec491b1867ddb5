"""The back end for NVIDIA GPUs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypedDict, TypeVar

import mlx.core as mx

from engines.gguf.kernels.cuda.ahead import compile_ahead
from engines.gguf.kernels.cuda.attention import attended, attends
from engines.gguf.kernels.cuda.launch import (
    HALVES,
    Activations,
    JointLaunch,
    Launch,
    dequantized,
    gated_product,
    gathered_product,
    joined_product,
    narrowed,
    product,
)
from engines.gguf.kernels.cuda.layer import rotated, sum_norm
from engines.gguf.kernels.cuda.tile import DENSE_FROM, Tile, gated_tile, tile_for
from engines.gguf.kernels.gathering import Rotation
from engines.gguf.kernels.portable import PortableBackend
from engines.gguf.quants import BlockType, QuantType

__all__ = ["CudaBackend"]

# Weights dequantised at a time for a dense product: 128 MiB of scratch.
TILE_WEIGHTS = 1 << 26
# Products whose preparation is kept: every matrix shape of a model at every number of rows that decode sees, and then some.
KEPT = 4096


# Tokens of a prompt up to which they take the kernels of as many rows.
PROMPT_TOKENS = 8


@cache
def capability() -> int:
    """Major compute capability of MLX's GPU: 8 has the tensor core instruction the kernels use, 9 the bulk copy engine."""
    return int(mx.device_info().get("compute_capability_major", 0)) if mx.cuda.is_available() else 0


class CudaBackend:
    """float16 and bfloat16 activations on raw blocks; anything else as the portable back end does it.

    Up to :data:`~engines.gguf.kernels.cuda.tile.DENSE_FROM` rows of activations one kernel takes blocks apart in registers and
    multiplies on the tensor cores, float32 sums. From there on the weights are dequantised to scratch in the dtype of the
    activations and MLX's dense product does the rest: the scratch costs a fixed time, and the dense product is the faster one.

    A decoded token costs the host hundreds of calls of :meth:`multiply`, so what a call of the same shapes needs is kept.
    """

    name = "cuda"
    lazy = True
    checks = True

    def __init__(self, tile_weights: int = TILE_WEIGHTS) -> None:
        self._tile_weights = tile_weights
        self._portable = PortableBackend()
        self._prepared: dict[tuple[object, ...], Launch] = {}
        self._gated: dict[tuple[object, ...], Launch | None] = {}
        self._joined: dict[tuple[object, ...], JointLaunch | None] = {}
        self._cores = os.cpu_count() or 1

    def available(self) -> bool:
        return capability() >= 8 and bool(mx.default_device().type == mx.DeviceType.gpu)

    def set_cores(self, count: int) -> None:
        """That compile kernels; the CPU only starts them otherwise."""
        self._cores = count

    def compile_ahead(self, run: Callable[[], None], report: Callable[[float], None]) -> None:
        """See ``CompilingBackend.compile_ahead``."""
        compile_ahead(run, self._cores, report)

    def multiply(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> mx.array:
        key = (quant, x.shape, blocks.shape, x.dtype, blocks.dtype, transpose)
        prepared = self._prepared.get(key)
        if prepared is None:
            if len(self._prepared) >= KEPT:
                self._prepared.clear()
            prepared = self._prepared[key] = self._prepare(x, blocks, quant, transpose)
        return prepared(x, blocks)

    def multiply_gated(
        self, x: mx.array, gate: mx.array, up: mx.array, quant: QuantType, activation: str
    ) -> mx.array | None:
        """``activation(x @ gate.T) * (x @ up.T)`` in one kernel (see ``gated_product``); None where there is none for it."""
        key = (quant, x.shape, gate.shape, up.shape, x.dtype, activation)
        if key not in self._gated:
            if len(self._gated) >= KEPT:
                self._gated.clear()
            self._gated[key] = self._prepare_gated(x, gate, up, quant, activation)
        prepared = self._gated[key]
        return None if prepared is None else prepared(x, gate, up)

    def multiply_joined(self, x: mx.array, blocks: Sequence[mx.array], quant: QuantType) -> tuple[mx.array, ...] | None:
        """``x`` times the transposed weights of each of two or three matrices, in one kernel; None where there is none."""
        key = (quant, x.shape, x.dtype, *(each.shape for each in blocks))
        if key not in self._joined:
            if len(self._joined) >= KEPT:
                self._joined.clear()
            self._joined[key] = self._prepare_joined(x, blocks, quant)
        prepared = self._joined[key]
        return None if prepared is None else prepared(x, *blocks)

    def sum_norm(
        self, x: mx.array, r: mx.array, weight: mx.array, eps: float, inner: tuple[mx.array, float] | None
    ) -> tuple[mx.array, mx.array] | None:
        return sum_norm(x, r, weight, eps, inner)

    def rotate(
        self, queries: mx.array, keys: mx.array, offset: mx.array, rotation: Rotation
    ) -> tuple[mx.array, mx.array] | None:
        return rotated(queries, keys, offset, rotation)

    def attends(self, dtype: mx.Dtype, features: int) -> bool:
        return attends(dtype, features)

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, left: mx.array, used: mx.array, scale: float
    ) -> mx.array:
        return attended(queries, keys, values, left, used, scale)

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

    def _prepare(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> Launch:
        """What multiplies arrays of these shapes and dtypes. ValueError when they do not fit."""
        if blocks.dtype != mx.uint8 or blocks.ndim != 2:
            raise ValueError(f"blocks must be uint8 [rows, row bytes], not {blocks.dtype} {blocks.shape}")
        if not mx.issubdtype(x.dtype, mx.floating):
            raise ValueError(f"activations must be floating, not {x.dtype}")
        rows, columns = blocks.shape[0], quant.columns(blocks.shape[1])
        taken, given = (columns, rows) if transpose else (rows, columns)
        if x.ndim == 0 or x.shape[-1] != taken:
            raise ValueError(f"activations {x.shape} do not fit {quant.name} weights [{rows}, {columns}]")
        leading, dtype = x.shape[:-1], x.dtype
        m = math.prod(leading)
        if m * taken * given == 0:
            return lambda x, blocks: mx.zeros((*leading, given), dtype)
        if transpose and _few(x.shape) and isinstance(quant, BlockType) and dtype in HALVES:
            tile = tile_for(quant, rows, columns, m, **_device(dtype))
            x_taken = _taken(leading, dtype, tile)
            return _from_narrowed(x_taken, product(quant, tile, x_taken, rows))
        flat = self._dense if dtype in HALVES else self._portable.multiply
        return lambda x, blocks: flat(x.reshape(m, taken), blocks, quant, transpose).reshape(*leading, given)

    def _prepare_gated(
        self, x: mx.array, gate: mx.array, up: mx.array, quant: QuantType, activation: str
    ) -> Launch | None:
        if not self._together(x, (gate, up), quant) or gate.shape != up.shape:
            return None
        leading, rows, columns = x.shape[:-1], gate.shape[0], x.shape[-1]
        tile = gated_tile(quant, rows, columns, math.prod(leading), **_device(x.dtype))
        taken = _taken(leading, x.dtype, tile)
        return _from_narrowed(taken, gated_product(quant, tile, taken, rows, activation))

    def _prepare_joined(self, x: mx.array, blocks: Sequence[mx.array], quant: QuantType) -> JointLaunch | None:
        if not self._together(x, blocks, quant) or len(blocks) > 3:
            return None
        leading, rows, columns = x.shape[:-1], tuple(each.shape[0] for each in blocks), x.shape[-1]
        tile = tile_for(quant, sum(rows), columns, math.prod(leading), **_device(x.dtype))
        taken = _taken(leading, x.dtype, tile)
        return _from_narrowed(taken, joined_product(quant, tile, taken, rows))

    def _together(self, x: mx.array, blocks: Sequence[mx.array], quant: QuantType) -> bool:
        """Whether the fused kernels take these. ValueError when the shapes do not fit."""
        for each in blocks:
            if x.shape[-1] != quant.columns(each.shape[1]):
                shape = [each.shape[0], quant.columns(each.shape[1])]
                raise ValueError(f"activations {x.shape} do not fit {quant.name} weights {shape}")
        return isinstance(quant, BlockType) and x.dtype in HALVES and math.prod(x.shape[:-1]) > 0 and _few(x.shape)

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


_Answer = TypeVar("_Answer")


class _Device(TypedDict):
    narrow: bool
    bulk: bool


def _few(shape: tuple[int, ...]) -> bool:
    """Whether so many rows of activations are for the kernels that take blocks apart in registers. Of a prompt's tokens, [rows,
    tokens, columns], only the fewest are: a dense product is as fast, and needs no kernel that decoding does not need."""
    m = math.prod(shape[:-1])
    return m <= PROMPT_TOKENS if len(shape) > 2 and shape[-2] > 1 else m < DENSE_FROM


def _device(dtype: mx.Dtype) -> _Device:
    """What the choice of a tile depends on besides shapes."""
    return {"narrow": dtype == mx.bfloat16, "bulk": capability() >= 9}


def _taken(leading: tuple[int, ...], dtype: mx.Dtype, tile: Tile) -> Activations:
    """bfloat16 activations are made float16 at a sixteenth by the kernel where it brings them to shared memory, else before."""
    if dtype != mx.bfloat16 or tile.narrowed:
        return Activations(leading, dtype, dtype)
    return Activations(leading, mx.float16, dtype, factor=16.0)


def _from_narrowed(taken: Activations, launch: Callable[..., _Answer]) -> Callable[..., _Answer]:
    if taken.taken == taken.given:
        return launch
    return lambda x, *blocks: launch(narrowed(x), *blocks)
