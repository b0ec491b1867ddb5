"""What a back end may offer besides products of one matrix."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import mlx.core as mx

from engines.gguf.quants import QuantType

__all__ = ["GatheringBackend", "HeadsBackend"]


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
