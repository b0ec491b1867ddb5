"""What a back end may offer besides products of one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import mlx.core as mx

from engines.gguf.quants import QuantType

__all__ = ["FusingBackend", "GatheringBackend", "HeadsBackend", "LayerBackend", "Rotation"]


@runtime_checkable
class GatheringBackend(Protocol):
    """Reads rows and experts by index on the device, without the host knowing which. Called on the device thread only."""

    def rows(self, blocks: mx.array, ids: mx.array, quant: QuantType, dtype: mx.Dtype) -> mx.array:
        """Weights of the rows of ``blocks`` [rows, row bytes] that ``ids`` [...] names: ``dtype`` [..., columns]."""
        ...

    def weights(self, blocks: mx.array, quant: QuantType, dtype: mx.Dtype) -> mx.array:
        """Weights of all rows of ``blocks`` [rows, row bytes]: ``dtype`` [rows, columns]."""
        ...

    def multiply_experts(
        self, x: mx.array, blocks: mx.array, quant: QuantType, experts: mx.array, share: int
    ) -> mx.array | None:
        """Row p of the answer [pairs, rows] is row p // ``share`` of ``x`` [rows of x, columns] times the transposed weights
        of expert ``experts[p]``; ``blocks`` is [experts, rows, row bytes], pairs is at least 1.

        None where it has no kernel for the type or the dtype.
        """
        ...


@runtime_checkable
class HeadsBackend(Protocol):
    """Multiplies with the matrices of all heads at once, either way around. Called on the device thread only."""

    def multiply_heads(self, x: mx.array, blocks: mx.array, quant: QuantType, transpose: bool) -> mx.array:
        """x [..., heads or 1, m, columns] times the transposed matrices of ``blocks`` [heads, rows, row bytes], or with
        ``transpose`` False x [..., heads or 1, m, rows] times the matrices; [..., heads, m, rows or columns] in the dtype of
        ``x``. Shapes agree and nothing is empty."""
        ...


@runtime_checkable
class FusingBackend(Protocol):
    """Multiplies the same activations with several matrices of one type in one kernel. Called on the device thread only.

    None where it has no kernel for the type, the dtype or so many rows of activations; ValueError when shapes do not fit.
    """

    def multiply_gated(
        self, x: mx.array, gate: mx.array, up: mx.array, quant: QuantType, activation: str
    ) -> mx.array | None:
        """``activation(x @ gate.T) * (x @ up.T)`` for x [..., columns] and blocks [rows, row bytes]: [..., rows] in the dtype
        of ``x``. ``activation`` is ``silu``, ``gelu`` or ``gelu_tanh``."""
        ...

    def multiply_joined(self, x: mx.array, blocks: Sequence[mx.array], quant: QuantType) -> tuple[mx.array, ...] | None:
        """``x @ each.T`` for two or three arrays of blocks [rows, row bytes], in the dtype of ``x``."""
        ...


@dataclass(frozen=True)
class Rotation:
    """A rotary embedding: pairs of the first ``dims`` features of a head, neighbours (``traditional``) or the two halves, are
    multiplied by ``magnitude`` and turned by ``scale`` times the position over ``base ** (2i / dims)``, or over
    ``wavelengths`` (float32 [dims / 2]) where there are some."""

    dims: int
    traditional: bool
    base: float = 10000.0
    scale: float = 1.0
    magnitude: float = 1.0
    wavelengths: mx.array | None = None


@runtime_checkable
class LayerBackend(Protocol):
    """What stands between a decoder's products, in one kernel each. Called on the device thread only. None where it has no kernel
    for the dtype or the shape."""

    def sum_norm(
        self, x: mx.array, r: mx.array, weight: mx.array, eps: float, inner: tuple[mx.array, float] | None
    ) -> tuple[mx.array, mx.array] | None:
        """``h = x + r`` and h's RMS norm, both [..., width] as ``x`` and ``r`` are; ``r`` goes through a norm of its own before
        where ``inner`` names its weight and epsilon."""
        ...

    def rotate(
        self, queries: mx.array, keys: mx.array, offset: mx.array, rotation: Rotation
    ) -> tuple[mx.array, mx.array] | None:
        """Queries and keys [rows, heads, 1, features] of one token a row, rotated. ``offset``: int32, of all rows or of each."""
        ...

    def attends(self, dtype: mx.Dtype, features: int) -> bool:
        """Whether :meth:`attend` has a kernel for this."""
        ...

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, left: mx.array, used: mx.array, scale: float
    ) -> mx.array:
        """Attention of one token a row: queries [rows, heads, 1, features] over the first ``used`` (int32 [1]) of keys and values
        [rows, kv heads, room, features], in each row without the first ``left`` (int32 [rows]); as the queries are."""
        ...
