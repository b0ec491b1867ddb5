"""Attention of stock model code through the compiled kernels: the one attribute of MLX that is replaced.

mlx-lm's models import their attention by name, but all of them reach ``mx.fast.scaled_dot_product_attention`` when they are
called, so that attribute is set while a text engine lives. What the kernels do not cover goes to MLX's own, as it was.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from engines.gguf.kernels.cpu import extension

__all__ = ["FusedAttention"]


class FusedAttention:
    """While open, ``mx.fast.scaled_dot_product_attention`` is the compiled one where arrays are float32 on the CPU.

    Nests: what was there before comes back. The device thread only.
    """

    def __init__(self) -> None:
        self._stock: Any = None

    def open(self) -> None:
        """Replaces the attribute, where there are compiled kernels."""
        compiled = extension()
        if compiled is None or self._stock is not None:
            return
        stock = self._stock = mx.fast.scaled_dot_product_attention
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

        mx.fast.scaled_dot_product_attention = fused

    def close(self) -> None:
        """Puts back what was there."""
        if self._stock is not None:
            mx.fast.scaled_dot_product_attention = self._stock
            self._stock = None
