"""Leaves that hold several tensors of a file where the stock model has one module, so that no block is copied or recoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from engines.gguf.experts import KQuantMultiLinear
from engines.gguf.quants import QuantType

__all__ = ["FlippedMultiLinear", "LatentKv", "SideBySide"]


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


class LatentKv(Module):
    """Keys and values of all heads from one latent: [..., latent] to [..., heads × (key + value)], head by head.

    Of the file's two tensors K is [heads, latent, key] or, flipped, [heads, key, latent], and V [heads, value, latent].
    """

    def __init__(self, keys: KQuantMultiLinear | FlippedMultiLinear, values: KQuantMultiLinear) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.k_b = keys
        self.v_b = values

    def __call__(self, x: mx.array) -> mx.array:
        rows = x.reshape(1, -1, x.shape[-1])
        expanded = mx.concatenate([self.k_b(rows), self.v_b(rows)], axis=-1)  # [heads, rows, key + value]
        return expanded.swapaxes(0, 1).reshape(*x.shape[:-1], -1)
