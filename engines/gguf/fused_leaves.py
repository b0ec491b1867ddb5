"""Leaves that stand where MLX's own stood, each one compiled primitive."""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx
from mlx.nn.layers.base import Module

from engines.gguf.kernels.cpu import Extension

__all__ = ["ACTIVATIONS", "FusedRMSNorm", "FusedRoPE", "GatedMLP"]

ACTIVATIONS: Final = ("silu", "gelu", "gelu_tanh")
"""What the gate of an MLP goes through; the index is the extension's."""


class FusedRMSNorm(Module):
    """``nn.RMSNorm``, with its parameter."""

    def __init__(self, weight: mx.array, eps: float, compiled: Extension) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weight = weight
        self.eps = eps
        self._norm = compiled.rms_norm

    def __call__(self, x: mx.array) -> mx.array:
        return self._norm(x, self.weight, self.eps)


class FusedRoPE(Module):
    """``nn.RoPE`` and :class:`~engines.gguf.rope.FactoredRoPE`: [batch, heads, tokens, features] and the offset of the first
    token, or of each row's."""

    def __init__(
        self,
        compiled: Extension,
        *,
        dims: int,
        traditional: bool,
        base: float = 0.0,
        scale: float = 1.0,
        wavelengths: mx.array | None = None,
        magnitude: float = 1.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dims = dims
        self.traditional = traditional
        self.base = base
        self.scale = scale
        self.magnitude = magnitude
        self._wavelengths = wavelengths
        self._rope = compiled.rope

    @property
    def wavelengths(self) -> mx.array | None:
        """float32 [dims / 2]; None where they follow from the base."""
        return self._wavelengths

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        if self.magnitude != 1.0:
            x = x.at[..., : self.dims].multiply(self.magnitude)
        return self._rope(x, self.dims, self.traditional, self.base, self.scale, offset, self._wavelengths)


class GatedMLP(Module):
    """``down(activation(gate(x)) * up(x))`` with gate, up and activation in one primitive."""

    def __init__(self, mlp: Any, activation: str, compiled: Extension) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gate_proj = mlp.gate_proj
        self.up_proj = mlp.up_proj
        self.down_proj = mlp.down_proj
        self._activation = ACTIVATIONS.index(activation)
        self._compiled = compiled
        self._biased = "bias" in mlp.gate_proj or "bias" in mlp.up_proj
        self._types = (mlp.gate_proj.quant.ggml_id, mlp.up_proj.quant.ggml_id)

    def __call__(self, x: mx.array) -> Any:
        gate, up = self.gate_proj, self.up_proj
        if self._biased:
            hidden = self._compiled.gated(gate(x), up(x), self._activation)
        else:
            hidden = self._compiled.gated_product(x, gate.blocks, up.blocks, *self._types, self._activation)
        return self.down_proj(hidden)
