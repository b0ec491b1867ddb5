"""Gated delta nets whose value heads may lie in the order of llama.cpp's converter, and that read prompts by chunks.

A key head serves several value heads. Checkpoints keep those of a key head together; the converter of Qwen 3.5 lays them out in
turns, the first of every key head, then the second, so that ggml repeats keys without an index. Nothing else depends on the
order of value heads, so the file's rows and columns stay as they lie, and keys and queries are repeated in turns too.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.activations import softplus
from mlx.nn.layers.base import Module
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk

from engines.gguf.convolution import convolved, last_columns
from engines.gguf.delta_rule import delta_rule

__all__ = ["ChunkedDeltaNet", "adapt"]


def adapt(model: Any, plan: Any) -> None:
    """Replaces the delta net of every layer that has one."""
    for layer in model.layers:
        if layer.is_linear:
            layer.linear_attn = ChunkedDeltaNet(layer.linear_attn, in_turns=plan.config["value_heads_in_turns"])


class ChunkedDeltaNet(Module):
    """The stock delta net's children and parameters under their names.

    ``in_turns`` says that value head h is served by key head h modulo their number, else that neighbours share one.
    """

    def __init__(self, stock: Any, *, in_turns: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for name, child in stock.items():
            self[name] = child
        self._key_heads = stock.num_k_heads
        self._value_heads = stock.num_v_heads
        self._key_width = stock.head_k_dim
        self._value_width = stock.head_v_dim
        self._taps = stock.conv_kernel_size
        self._in_turns = in_turns

    def __call__(self, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> Any:
        """x [rows, tokens, width] to the same shape; ``mask`` [rows, tokens] is false for what is no token."""
        rows, tokens, _ = x.shape
        mixed = self.in_proj_qkv(x)
        if mask is not None:
            mixed = mx.where(mask[..., None], mixed, 0)
        columns = None if cache is None else cache[0]
        if columns is None:
            columns = mx.zeros((rows, self._taps - 1, mixed.shape[-1]), mixed.dtype)
        inputs = mx.concatenate([columns, mixed], axis=1)
        if cache is not None:
            cache[0] = last_columns(inputs, self._taps - 1, cache.lengths)
        keys = self._key_heads * self._key_width
        q, k, v = mx.split(convolved(self.conv1d, inputs), [keys, 2 * keys], axis=-1)
        q, k = (part.reshape(rows, tokens, self._key_heads, self._key_width) for part in (q, k))
        q, k = normalize_qk(q, k, inv_scale=self._key_width**-0.5, eps=1e-6)
        v = v.reshape(rows, tokens, self._value_heads, self._value_width)
        state = None if cache is None else cache[1]
        out, state = self._rule(self._repeated(q), self._repeated(k), v, x, state, mask)
        if cache is not None:
            cache[1] = state
            cache.advance(tokens)
        gate = self.in_proj_z(x).reshape(rows, tokens, self._value_heads, self._value_width)
        return self.out_proj(self.norm(out, gate).reshape(rows, tokens, -1))

    def _rule(
        self, q: mx.array, k: mx.array, v: mx.array, x: mx.array, state: mx.array | None, mask: mx.array | None
    ) -> tuple[mx.array, mx.array]:
        a, b = self.in_proj_a(x), self.in_proj_b(x)
        if x.shape[1] == 1 or mx.metal.is_available():  # which has a kernel for it
            return gated_delta_update(q, k, v, a, b, self.A_log, self.dt_bias, state, mask)
        if state is None:
            state = mx.zeros((v.shape[0], self._value_heads, self._value_width, self._key_width))
        log_decays = -mx.exp(self.A_log.astype(mx.float32)) * softplus(a.astype(mx.float32) + self.dt_bias)
        rates = mx.sigmoid(b)
        if mask is not None:
            log_decays, rates = (mx.where(mask[..., None], each, 0) for each in (log_decays, rates))
        out, state = delta_rule(q, k, v, log_decays, rates, state)
        return out.astype(x.dtype), state

    def _repeated(self, keys: mx.array) -> mx.array:
        """[rows, tokens, key heads, width] for each value head."""
        times = self._value_heads // self._key_heads
        if times == 1:
            return keys
        return mx.tile(keys, (1, 1, times, 1)) if self._in_turns else mx.repeat(keys, times, axis=2)
