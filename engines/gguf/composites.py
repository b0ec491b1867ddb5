"""Leaves that hold several tensors of a file where the stock model has one module, so that no block is copied or recoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from engines.gguf.experts import KQuantMultiLinear
from engines.gguf.quants import QuantType

__all__ = ["FlippedMultiLinear", "SideBySide"]


class SideBySide(Module):
    """The products of several leaves of one kind, concatenated: in the place of one linear layer, or of one of experts.

    The parts may have different quant types.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts = list(parts)

    def __call__(self, x: mx.array, *arguments: Any, **options: Any) -> mx.array:
        return mx.concatenate([part(x, *arguments, **options) for part in self.parts], axis=-1)

    @property
    def weight(self) -> mx.array:
        """All weights, dequantised anew at each access."""
        return mx.concatenate([part.weight for part in self.parts], axis=-2)


class FlippedMultiLinear(Module):
    """``MultiLinear`` on matrices that are stored the other way around: blocks of [heads, columns, rows]."""

    def __init__(self, blocks: mx.array, quant: QuantType) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stored = KQuantMultiLinear(blocks, quant)

    def __call__(self, x: mx.array, transpose: bool = True) -> mx.array:
        return self.stored(x, transpose=not transpose)
