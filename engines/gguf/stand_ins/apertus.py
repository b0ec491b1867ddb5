"""apertus: its activation in the dtype of what it is given. Parameters in arrays of float32 would make all that follows so."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

__all__ = ["Xielu", "adapt"]


def adapt(model: Any, plan: Any) -> None:
    """Replaces the activation of every layer by one with the file's parameters."""
    for layer, parameters in zip(model.layers, plan.config["xielu"], strict=True):
        layer.mlp.act_fn = Xielu(**parameters)


class Xielu(Module):
    """``p x² + b x`` for x > 0, else ``(expm1(min(x, eps)) - x) n + b x``, with p = softplus(alpha_p), n = b + softplus(alpha_n)
    and b = beta (Huang and Schlag, 2024, "Deriving Activation Functions Using Integration")."""

    def __init__(self, alpha_p: float, alpha_n: float, beta: float, eps: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._positive = _softplus(alpha_p)
        self._negative = beta + _softplus(alpha_n)
        self._beta = beta
        self._eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        below = (mx.expm1(mx.minimum(x, self._eps)) - x) * self._negative
        return mx.where(x > 0, x * x * self._positive, below) + self._beta * x


def _softplus(value: float) -> float:
    return math.log1p(math.exp(-abs(value))) + max(value, 0.0)
