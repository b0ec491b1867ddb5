"""Gated delta nets whose value heads lie in the order of llama.cpp's converter.

A key head serves several value heads. Checkpoints keep those of a key head together; the converter of Qwen 3.5 lays them out in
turns, the first of every key head, then the second, so that ggml repeats keys without an index. Nothing else depends on the
order of value heads, so the file's rows and columns stay as they lie, and keys and queries are repeated in turns too.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.activations import silu
from mlx.nn.layers.base import Module
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk

__all__ = ["TurnedDeltaNet", "adapt"]


def adapt(model: Any, plan: Any) -> None:
    """Replaces the delta net of every layer that has one, where a key head serves several value heads."""
    config = plan.config
    if config["linear_num_value_heads"] == config["linear_num_key_heads"] or not config["value_heads_in_turns"]:
        return
    for layer in model.layers:
        if layer.is_linear:
            layer.linear_attn = TurnedDeltaNet(layer.linear_attn)


class TurnedDeltaNet(Module):
    """The stock delta net's children and parameters under their names, with value head h served by key head h modulo theirs."""

    def __init__(self, stock: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for name, child in stock.items():
            self[name] = child
        self._key_heads = stock.num_k_heads
        self._value_heads = stock.num_v_heads
        self._key_width = stock.head_k_dim
        self._value_width = stock.head_v_dim
        self._taps = stock.conv_kernel_size

    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> Any:
        """x [rows, tokens, width] to the same shape; ``mask`` [rows, tokens] is false for what is no token."""
        rows, tokens, _ = x.shape
        mixed = self.in_proj_qkv(x)
        if mask is not None:
            mixed = mx.where(mask[..., None], mixed, 0)
        columns = None if cache is None else cache[0]
        if columns is None:
            columns = mx.zeros((rows, self._taps - 1, mixed.shape[-1]), mixed.dtype)
        seen = mx.concatenate([columns, mixed], axis=1)
        if cache is not None:
            cache[0] = self._last_columns(seen, cache.lengths)
        keys = self._key_heads * self._key_width
        queries, keyed, values = mx.split(silu(self.conv1d(seen)), [keys, 2 * keys], axis=-1)
        queries, keyed = normalize_qk(
            queries.reshape(rows, tokens, self._key_heads, self._key_width),
            keyed.reshape(rows, tokens, self._key_heads, self._key_width),
            inv_scale=self._key_width**-0.5,
            eps=1e-6,
        )
        turns = self._value_heads // self._key_heads
        out, state = gated_delta_update(
            mx.tile(queries, (1, 1, turns, 1)),
            mx.tile(keyed, (1, 1, turns, 1)),
            values.reshape(rows, tokens, self._value_heads, self._value_width),
            self.in_proj_a(x),
            self.in_proj_b(x),
            self.A_log,
            self.dt_bias,
            None if cache is None else cache[1],
            mask,
        )
        if cache is not None:
            cache[1] = state
            cache.advance(tokens)
        gate = self.in_proj_z(x).reshape(rows, tokens, self._value_heads, self._value_width)
        return self.out_proj(self.norm(out, gate).reshape(rows, tokens, -1))

    def _last_columns(self, seen: mx.array, lengths: mx.array | None) -> mx.array:
        """What the convolution needs of the past: of each row the last columns before its padding."""
        kept = self._taps - 1
        if lengths is None:
            return mx.contiguous(seen[:, -kept:])
        ends = mx.clip(lengths, 0, seen.shape[1] - kept)
        return mx.take_along_axis(seen, (ends[:, None] + mx.arange(kept))[..., None], axis=1)
