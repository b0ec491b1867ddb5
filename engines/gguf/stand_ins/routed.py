"""Routed blocks with softmax scores: for stock classes whose own do not know of a correction bias, or do not normalise weights.

scores = softmax(router(x))                       over all experts
chosen = the largest of scores + correction
weights = scores of the chosen, divided by their sum where the model does so
answer = sum of weights × experts, + shared(x)
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear

__all__ = ["RoutedBlock", "adapt"]


def adapt(model: Any, plan: Any) -> None:
    """Replaces the routed blocks; dense ones stay. The router is then ``mlp.gate``, experts ``mlp.switch_mlp``, the shared
    ones ``mlp.shared_experts``."""
    config = plan.config
    for layer in model.layers:
        stock = layer.mlp
        if "switch_mlp" in stock:
            shared = stock.get("shared_experts", stock.get("shared_mlp"))
            layer.mlp = RoutedBlock(
                stock.switch_mlp,
                shared,
                width=config["hidden_size"],
                count=stock.switch_mlp.gate_proj.num_experts,
                used=config["num_experts_per_tok"],
                normalised=config["norm_topk_prob"],
            )


class RoutedBlock(Module):
    """Activations [..., width] to the same. ``experts`` is a SwitchGLU, ``shared`` an MLP or None."""

    def __init__(self, experts: Any, shared: Any, *, width: int, count: int, used: int, normalised: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gate = Linear(width, count, bias=False)
        self.switch_mlp = experts
        self.e_score_correction_bias = mx.zeros(count)
        if shared is not None:
            self.shared_experts = shared
        self._used = used
        self._normalised = normalised

    def __call__(self, x: mx.array) -> Any:
        scores = mx.softmax(self.gate(x).astype(mx.float32), axis=-1)
        chosen = mx.argpartition(-(scores + self.e_score_correction_bias), kth=self._used - 1, axis=-1)
        chosen = chosen[..., : self._used]
        weights = mx.take_along_axis(scores, chosen, axis=-1)
        if self._normalised:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        out = (self.switch_mlp(x, chosen) * weights[..., None]).sum(axis=-2).astype(x.dtype)
        return out + self.shared_experts(x) if "shared_experts" in self else out
