"""gemma2: masks of its own for windowed and for full layers, and attention with soft caps for batches too.

The stock class adds its mask to scores [rows, KV heads, heads a KV head, queries, keys] without an axis for the heads: for more
than one row it fails, or, where there are as many rows as KV heads, hides one row's padding from another. Nor does it know that
every other layer attends to a window.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.base import create_attention_mask

from engines.gguf.fused import can_fuse
from engines.gguf.kernels.cpu import Extension, extension

__all__ = ["SoftCappedAttention", "WindowedModel", "adapt"]


def adapt(model: Any, plan: Any) -> None:
    """Replaces the decoder and the attention of its layers."""
    compiled = extension() if can_fuse() else None
    for layer in model.layers:
        layer.self_attn = SoftCappedAttention(layer.self_attn, compiled)
    model.model = WindowedModel(model.model, plan.windows)


class WindowedModel(Module):
    """The stock decoder's children under their names. ``windows`` are the last tokens a layer attends to; None: all."""

    def __init__(self, stock: Any, windows: tuple[int | None, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.embed_tokens = stock.embed_tokens
        self.layers = stock.layers
        self.norm = stock.norm
        self._scale = stock.args.hidden_size**0.5
        self._windows = windows

    def __call__(self, inputs: mx.array, cache: Any = None) -> Any:
        h = self.embed_tokens(inputs) * self._scale
        caches = cache or [None] * len(self.layers)
        masks: dict[int | None, Any] = {}
        for layer, layer_cache, window in zip(self.layers, caches, self._windows, strict=True):
            if window not in masks:
                masks[window] = create_attention_mask(h, layer_cache, window_size=window, return_array=True)
            h = layer(h, masks[window], layer_cache)
        return self.norm(h)


class SoftCappedAttention(Module):
    """The stock attention's children under their names, and the compiled attention where that serves."""

    def __init__(self, stock: Any, compiled: Extension | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._compiled = compiled
        for name, child in stock.children().items():
            self[name] = child
        self._heads = stock.n_heads
        self._kv_heads = stock.n_kv_heads
        self._scale = stock.scale
        self._cap = stock.attn_logit_softcapping

    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> Any:
        """x [rows, tokens, width] to the same shape. ``mask`` is boolean, [rows, 1, queries, keys] or without the first two."""
        rows, tokens, _ = x.shape
        projections = (self.q_proj, self._heads), (self.k_proj, self._kv_heads), (self.v_proj, self._kv_heads)
        queries, keys, values = (
            projection(x).reshape(rows, tokens, heads, -1).swapaxes(1, 2) for projection, heads in projections
        )
        offset = 0 if cache is None else cache.offset
        queries, keys = self.rope(queries, offset=offset), self.rope(keys, offset=offset)
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)
        if self._compiled is not None and queries.dtype == keys.dtype == mx.float32:
            attended = self._compiled.attention(queries, keys, values, self._scale, False, mask, self._cap)
        else:
            attended = self._attend(queries, keys, values, mask)
        return self.o_proj(attended.swapaxes(1, 2).reshape(rows, tokens, -1))

    def _attend(self, queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None) -> mx.array:
        """[rows, heads, tokens, features], by MLX."""
        rows, heads, tokens, features = queries.shape
        queries = (queries * self._scale).reshape(rows, self._kv_heads, -1, tokens, features)
        scores = queries @ keys[:, :, None].swapaxes(-1, -2)
        scores = mx.tanh(scores / self._cap) * self._cap
        if mask is not None:
            mask = mask[:, :, None] if mask.ndim == 4 else mask  # an axis for the heads that a KV head has
            scores = mx.where(mask, scores, mx.finfo(scores.dtype).min)
        return (mx.softmax(scores, axis=-1, precise=True) @ values[:, :, None]).reshape(rows, heads, tokens, features)
