"""Mamba 2 layers that read prompts by smaller chunks, and whose gated norm is taken group by group, as they are trained.

Some stock classes take the norm over all heads.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.activations import silu, softplus
from mlx.nn.layers.base import Module

from engines.gguf.convolution import convolved, last_columns
from engines.gguf.state_space import state_space

__all__ = ["ChunkedScan", "GroupedGatedNorm", "adapt"]


def adapt(model: Any, plan: Any) -> None:
    """Changes every Mamba 2 layer of the stock model."""
    for layer in model.layers:
        mixer = layer.get("mamba", layer.get("mixer", {}))
        if "A_log" not in mixer:
            continue
        # The stock class with another scan: all else that it does and has stays as it is.
        mixer.__class__ = type(f"Chunked{type(mixer).__name__}", (ChunkedScan, type(mixer)), {})
        if "norm" in mixer and mixer.n_groups > 1:
            mixer.norm = GroupedGatedNorm(mixer.norm, mixer.n_groups, plan.config["gated_norm_eps"])


class ChunkedScan:
    """What takes the place of a stock mixer's convolution and scan. Steps are not limited, as the files' models have it."""

    def _conv(self: Any, x: mx.array, cache: Any, mask: mx.array | None) -> mx.array:
        """x [rows, tokens, channels] to the same shape."""
        if mask is not None:
            x = mx.where(mask[..., None], x, 0)
        kept = self.conv_kernel_size - 1
        columns = None if cache is None else cache[0]
        if columns is None:
            columns = mx.zeros((x.shape[0], kept, x.shape[-1]), x.dtype)
        inputs = mx.concatenate([columns, x], axis=1)
        if cache is not None:
            cache[0] = last_columns(inputs, kept, cache.lengths)
        return convolved(self.conv1d, inputs)

    def _ssm(
        self: Any, x: mx.array, into: mx.array, out_of: mx.array, steps: mx.array, cache: Any, mask: mx.array | None
    ) -> Any:
        """x [rows, tokens, heads × width], into and out_of [rows, tokens, groups × state], steps [rows, tokens, heads]."""
        rows, tokens, _ = x.shape
        if tokens == 1 or mx.metal.is_available():  # which has a kernel for decoding
            return super()._ssm(x, into, out_of, steps, cache, mask)  # type: ignore[misc]
        values = x.reshape(rows, tokens, self.num_heads, self.head_dim)
        steps = softplus(steps.astype(mx.float32) + self.dt_bias)
        log_decays, scaled = -mx.exp(self.A_log.astype(mx.float32)) * steps, steps[..., None] * values
        if mask is not None:
            log_decays, scaled = mx.where(mask[..., None], log_decays, 0), mx.where(mask[..., None, None], scaled, 0)
        state = None if cache is None else cache[1]
        if state is None:
            state = mx.zeros((rows, self.num_heads, self.head_dim, self.ssm_state_size))
        shape = (rows, tokens, self.n_groups, self.ssm_state_size)
        out, state = state_space(scaled, log_decays, into.reshape(shape), out_of.reshape(shape), state)
        if cache is not None:
            cache[1] = state
        return (out + self.D[:, None] * values).astype(x.dtype).reshape(rows, tokens, -1)


class GroupedGatedNorm(Module):
    """``norm(silu(gate) * x) * weight`` with the root mean square of each group of features; x and gate are [..., features]."""

    def __init__(self, stock: Any, groups: int, eps: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weight = stock.weight
        self.eps = eps
        self._groups = groups

    def __call__(self, x: mx.array, gate: mx.array) -> Any:
        gated: Any = silu(gate) * x
        grouped = gated.reshape(*x.shape[:-1], self._groups, -1)
        return self.weight * mx.fast.rms_norm(grouped, None, self.eps).reshape(x.shape)
