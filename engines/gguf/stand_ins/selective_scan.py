"""Layers of the first Mamba, whose prompts are read part by part in float32, and Jamba's experts, weighted as they are trained.

The stock scans keep what every token adds to the state at once, some of them copied for each token, and the state in the dtype of
activations. Jamba's routing weighs the chosen experts by their part of a softmax over all experts; the stock class takes it over
those that are chosen.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx
from mlx.nn.layers.activations import silu, softplus
from mlx.nn.layers.base import Module

from engines.gguf.convolution import convolved, last_columns

__all__ = ["SelectiveScan", "WeightedExperts", "adapt"]

_PART: Final = 32  # tokens


def adapt(model: Any, plan: Any) -> None:
    """Replaces the scan of every layer that has one, and every mixture of experts."""
    for layer in model.layers:
        for name in ("mixer", "mamba"):
            if name in layer:
                layer[name] = SelectiveScan(layer[name], plan.config["scan_norm_eps"])
        if "router" in layer.get("feed_forward", {}):
            layer.feed_forward = WeightedExperts(layer.feed_forward)


class SelectiveScan(Module):
    """The stock mixer's children and parameters under their names.

    Step, B and C are normalised by the norms that it has, or without weights where ``norm_eps`` is given.
    """

    def __init__(self, stock: Any, norm_eps: float | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for name, child in stock.items():
            self[name] = child
        self._rank = stock.time_step_rank
        self._state = stock.ssm_state_size
        self._taps = stock.conv_kernel_size
        self._norm_eps = norm_eps

    def __call__(self, x: mx.array, cache: Any = None) -> Any:
        """x [rows, tokens, width] to the same shape."""
        values, gate = mx.split(self.in_proj(x), 2, axis=-1)
        columns = None if cache is None else cache[0]
        if columns is None:
            columns = mx.zeros((x.shape[0], self._taps - 1, values.shape[-1]), values.dtype)
        inputs = mx.concatenate([columns, values], axis=1)
        values = convolved(self.conv1d, inputs)
        step, into, out_of = mx.split(self.x_proj(values), [self._rank, self._rank + self._state], axis=-1)
        step, into, out_of = self._normed(step, into, out_of)
        step = softplus(self.dt_proj(step).astype(mx.float32))
        scanned = values.astype(mx.float32)
        out, state = self._scan(scanned, step, into, out_of, None if cache is None else cache[1])
        if cache is not None:
            cache[0], cache[1] = last_columns(inputs, self._taps - 1, None), state
            cache.advance(x.shape[1])
        out = (out + self.D.astype(mx.float32) * scanned).astype(x.dtype)
        return self.out_proj(silu(gate) * out)

    def _normed(self, step: mx.array, into: mx.array, out_of: mx.array) -> list[mx.array]:
        if "dt_layernorm" in self:
            return [self.dt_layernorm(step), self.b_layernorm(into), self.c_layernorm(out_of)]
        if self._norm_eps is None:
            return [step, into, out_of]
        return [mx.fast.rms_norm(each, None, self._norm_eps) for each in (step, into, out_of)]

    def _scan(
        self, x: mx.array, step: mx.array, into: mx.array, out_of: mx.array, state: mx.array | None
    ) -> tuple[mx.array, mx.array]:
        """x and step [rows, tokens, values], into and out_of [rows, tokens, state]; float32 [rows, tokens, values], and the state
        [rows, values, state]."""
        rate = -mx.exp(self.A_log.astype(mx.float32))
        into, out_of = into.astype(mx.float32), out_of.astype(mx.float32)
        if state is None:
            state = mx.zeros((x.shape[0], *rate.shape))
        tokens, outs = x.shape[1], []
        for start in range(0, tokens, _PART):
            part = slice(start, start + _PART)
            kept = mx.exp(step[:, part, :, None] * rate)
            added = (step * x)[:, part, :, None] * into[:, part, None, :]
            for token in range(kept.shape[1]):
                state = kept[:, token] * state + added[:, token]
                outs.append((state @ out_of[:, start + token, :, None]).squeeze(-1))
            if tokens > _PART:
                mx.eval(state, outs)
        return mx.stack(outs, axis=1), state


class WeightedExperts(Module):
    """``sum of softmax(router(x))[e] × expert e (x)`` over the experts that it is greatest for."""

    def __init__(self, stock: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.router = stock.router
        self.switch_mlp = stock.switch_mlp
        self._used = stock.num_experts_per_tok

    def __call__(self, x: mx.array) -> Any:
        weights = mx.softmax(self.router(x), axis=-1, precise=True)
        chosen = mx.argpartition(-weights, kth=self._used - 1, axis=-1)[..., : self._used]
        parts = self.switch_mlp(x, chosen)
        return (parts * mx.take_along_axis(weights, chosen, axis=-1)[..., None]).sum(axis=-2)
