"""Attention of stock model code through something faster: the one attribute of MLX that is replaced.

mlx-lm's models import their attention by name, but all of them reach ``mx.fast.scaled_dot_product_attention`` when they are
called, so that attribute is set while a text engine lives: to the compiled kernels on the CPU, to MLX's own in few shapes on CUDA.
What neither covers goes to MLX's own, as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self

import mlx.core as mx

from engines.gguf.kernels.cpu import Extension, extension
from engines.text.attention_shapes import PaddedAttention

__all__ = ["FusedAttention"]


class FusedAttention:
    """While open, ``mx.fast.scaled_dot_product_attention`` is the compiled one where arrays are float32 on the CPU, and pads
    prompts where the device is CUDA's.

    Several may be open, and closed in any order: after the last, what was there before the first is back. The device thread
    only.
    """

    _opened: ClassVar[list[FusedAttention]] = []  # each has replaced what the one before it put there

    def __init__(self) -> None:
        self._stock: Any = None

    def open(self) -> None:
        """Replaces the attribute, where there is something to replace it by."""
        if self._stock is not None:
            return
        stock = mx.fast.scaled_dot_product_attention
        replacement = _replacement(stock)
        if replacement is not None:
            self._stock, mx.fast.scaled_dot_product_attention = stock, replacement
            self._opened.append(self)

    def close(self) -> None:
        """Puts back what was there, or leaves that to the one that was opened next."""
        if self._stock is None:
            return
        place = self._opened.index(self)
        del self._opened[place]
        if place < len(self._opened):
            self._opened[place]._stock = self._stock
        else:
            mx.fast.scaled_dot_product_attention = self._stock
        self._stock = None

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _replacement(stock: Any) -> Callable[..., Any] | None:
    if mx.cuda.is_available() and mx.default_device().type == mx.DeviceType.gpu:
        return stock if isinstance(stock, PaddedAttention) else PaddedAttention(stock)
    compiled = extension()
    return None if compiled is None else _compiled(stock, compiled)


def _compiled(stock: Callable[..., Any], compiled: Extension) -> Callable[..., Any]:
    attention, float32, cpu = compiled.attention, mx.float32, mx.DeviceType.cpu

    def fused(
        q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Any = None, sinks: Any = None, **others: Any
    ) -> Any:
        fits = q.dtype == k.dtype == v.dtype == float32 and sinks is None and not others
        if fits and mx.default_device().type == cpu:
            if mask is None or isinstance(mask, mx.array):
                return attention(q, k, v, scale, False, mask)
            if mask == "causal":
                return attention(q, k, v, scale, True)
        return stock(q, k, v, scale=scale, mask=mask, sinks=sinks, **others)

    return fused
