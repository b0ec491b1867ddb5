"""bitnet: a Llama with a norm before each of a block's two output projections, and its gate's activation squared or not.

mlx-lm's own class multiplies through Metal kernels only and packs weights its own way; the file's are ordinary matrices, in
ternary types or others.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.activations import relu2, silu
from mlx.nn.layers.base import Module
from mlx.nn.layers.normalization import RMSNorm

__all__ = ["BitMLP", "NormedLinear", "adapt"]


def adapt(model: Any, plan: Any) -> None:
    """Replaces the attention's output projection and the MLP of every layer of mlx-lm's llama."""
    config = plan.config
    for layer in model.layers:
        attended = config["num_attention_heads"] * config["head_dim"]
        layer.self_attn.o_proj = NormedLinear(layer.self_attn.o_proj, attended, config["rms_norm_eps"])
        layer.mlp = BitMLP(layer.mlp, config["intermediate_size"], config["rms_norm_eps"], config["hidden_act"])


class NormedLinear(Module):
    """``linear(norm(x))``."""

    def __init__(self, linear: Any, width: int, eps: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.norm = RMSNorm(width, eps)
        self.linear = linear

    def __call__(self, x: mx.array) -> Any:
        return self.linear(self.norm(x))


class BitMLP(Module):
    """``down(norm(activation(gate(x)) * up(x)))``; the activation is ``silu`` or ``relu2``."""

    def __init__(self, stock: Any, width: int, eps: float, activation: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gate_proj = stock.gate_proj
        self.up_proj = stock.up_proj
        self.down_proj = NormedLinear(stock.down_proj, width, eps)
        self._activation: Any = {"silu": silu, "relu2": relu2}[activation]

    def __call__(self, x: mx.array) -> Any:
        return self.down_proj(self._activation(self.gate_proj(x)) * self.up_proj(x))
