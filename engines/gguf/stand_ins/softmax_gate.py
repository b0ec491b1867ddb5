"""The router of DeepSeek V2 in the stock class of V3, which caches a ninth of what V2's own caches: the latent of keys and values.

scores = softmax(x @ weight.T)                    over all experts
groups = those with the largest score of an expert, where experts are in groups
chosen = the experts with the largest scores, of these groups
weights = scores of the chosen, divided by their sum where the model does so, times a scale
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

__all__ = ["SoftmaxGate", "adapt"]


def adapt(model: Any, plan: Any) -> None:
    """Replaces the routers; they keep their place."""
    for layer in model.layers:
        if "gate" in layer.mlp:
            layer.mlp.gate = SoftmaxGate(plan.config)


class SoftmaxGate(Module):
    """Activations [..., width] to the chosen experts and their weights [..., used], as the stock router's answer."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weight = mx.zeros((config["n_routed_experts"], config["hidden_size"]))
        self._used = config["num_experts_per_tok"]
        self._groups, self._groups_used = config["n_group"], config["topk_group"]
        self._normalised = config["norm_topk_prob"]
        self._scale = config["routed_scaling_factor"]

    def __call__(self, x: mx.array) -> tuple[mx.array, mx.array]:
        scores = mx.softmax((x @ self.weight.T).astype(mx.float32), axis=-1)
        eligible = self._of_best_groups(scores) if self._groups_used < self._groups else scores
        chosen = mx.argpartition(-eligible, kth=self._used - 1, axis=-1)[..., : self._used]
        weights = mx.take_along_axis(scores, chosen, axis=-1)
        if self._normalised:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        return chosen, (weights * self._scale).astype(x.dtype)

    def _of_best_groups(self, scores: mx.array) -> mx.array:
        grouped = scores.reshape(*scores.shape[:-1], self._groups, -1)
        best = grouped.max(axis=-1)
        worst = mx.argpartition(best, kth=self._groups - self._groups_used - 1, axis=-1)
        worst = worst[..., : self._groups - self._groups_used, None]
        return mx.put_along_axis(grouped, worst, mx.array(-1.0), axis=-2).reshape(scores.shape)
