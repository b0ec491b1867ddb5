"""Compiled operations under stock model code: leaves that stand where MLX's own stood, and its attention.

On the CPU MLX needs 60 µs for a norm, 158 for a rotary embedding and 218 for a step of attention of a 135M model, each of them
many small operations; as one primitive each takes a few. Leaves are swapped by exact type, so that whatever a model does
differently stays as it is. What GPUs get instead is in ``joined.py``.
"""

from __future__ import annotations

from typing import Any, Final

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.normalization import LayerNorm, RMSNorm
from mlx.nn.layers.positional_encoding import RoPE
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.rope_utils import YarnRoPE

from engines.gguf.joined import gated_mlps, join
from engines.gguf.kernels import backend
from engines.gguf.kernels.cpu import Extension, extension
from engines.gguf.kernels.gathering import FusingBackend
from engines.gguf.rope import FactoredRoPE

__all__ = ["ACTIVATIONS", "FusedLayerNorm", "FusedRMSNorm", "FusedRoPE", "GatedMLP", "can_fuse", "fuse"]

ACTIVATIONS: Final = ("silu", "gelu", "gelu_tanh")
"""What the gate of an MLP goes through; the index is the extension's."""


def can_fuse() -> bool:
    """Whether the compiled back end serves the default device."""
    return backend().name == "cpu"


def fuse(model: Any, activation: str | None) -> None:
    """Replaces the leaves of a model that is filled. ``activation`` is that of its gated MLPs, one of :data:`ACTIVATIONS`;
    None: it has none of the usual form. Does nothing where the back end offers nothing of this."""
    chosen = backend()
    if isinstance(chosen, FusingBackend):
        join(model, activation, chosen)
        return
    compiled = extension()
    if compiled is None or not can_fuse():
        return
    leaves: Any = tree_flatten(model.leaf_modules(), is_leaf=lambda x: isinstance(x, Module))
    fused = [(path, leaf) for path, old in leaves if (leaf := _leaf(old, compiled)) is not None]
    model.update_modules(tree_unflatten(fused))
    if activation is not None:
        for layer in model.layers:
            for owner, name in gated_mlps(layer):
                setattr(owner, name, GatedMLP(getattr(owner, name), activation, compiled))


def _leaf(old: Any, compiled: Extension) -> Any:
    if type(old) is RMSNorm:
        return FusedRMSNorm(old.weight, old.eps, compiled)
    if type(old) is LayerNorm and "weight" in old:
        return FusedLayerNorm(old, compiled)
    if type(old) is RoPE:
        return FusedRoPE(compiled, dims=old.dims, traditional=old.traditional, base=old.base, scale=old.scale)
    if type(old) is FactoredRoPE:
        return FusedRoPE(
            compiled,
            dims=old.dims,
            traditional=old.traditional,
            wavelengths=old.wavelengths,
            magnitude=old.magnitude,
        )
    if type(old) is YarnRoPE:
        return FusedRoPE(
            compiled, dims=old.dims, traditional=old.traditional, wavelengths=old._freqs, magnitude=old.mscale
        )
    return None


class FusedRMSNorm(Module):
    """``nn.RMSNorm``, with its parameter."""

    def __init__(self, weight: mx.array, eps: float, compiled: Extension) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weight = weight
        self.eps = eps
        self._norm = compiled.rms_norm

    def __call__(self, x: mx.array) -> mx.array:
        return self._norm(x, self.weight, self.eps)


class FusedLayerNorm(Module):
    """``nn.LayerNorm`` with a weight, and its parameters."""

    def __init__(self, stock: Any, compiled: Extension) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weight = stock.weight
        if "bias" in stock:
            self.bias = stock.bias
        self.eps = stock.eps
        self._norm = compiled.layer_norm

    def __call__(self, x: mx.array) -> mx.array:
        return self._norm(x, None, self.weight, self.get("bias"), self.eps)


class FusedRoPE(Module):
    """``nn.RoPE``, YaRN and :class:`~engines.gguf.rope.FactoredRoPE`: [batch, heads, tokens, features] and the offset of the first
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
