"""Mamba 2 layers whose gated norm is taken group by group, as they are trained; some stock classes take it over all heads."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.activations import silu
from mlx.nn.layers.base import Module

__all__ = ["GroupedGatedNorm", "adapt"]


def adapt(model: Any, plan: Any) -> None:
    """Replaces the gated norm of every layer that has one, where there are several groups."""
    for layer in model.layers:
        mixer = layer.get("mamba", layer.get("mixer"))
        if mixer is not None and "norm" in mixer and mixer.n_groups > 1:
            mixer.norm = GroupedGatedNorm(mixer.norm, mixer.n_groups, plan.config["gated_norm_eps"])


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
