"""Compiled operations under stock model code: leaves that stand where MLX's own stood, and its attention.

On the CPU MLX needs 60 µs for a norm, 158 for a rotary embedding and 218 for a step of attention of a 135M model, each of them
many small operations; as one primitive each takes a few. Leaves are swapped by exact type, so that whatever a model does
differently stays as it is.
"""

from __future__ import annotations

from typing import Any

from mlx.nn.layers.base import Module
from mlx.nn.layers.normalization import RMSNorm
from mlx.nn.layers.positional_encoding import RoPE
from mlx.utils import tree_flatten, tree_unflatten

from engines.gguf.fused_block import fused_block
from engines.gguf.fused_leaves import FusedRMSNorm, FusedRoPE, GatedMLP
from engines.gguf.kernels import backend
from engines.gguf.kernels.cpu import Extension, extension
from engines.gguf.layers import KQuantLinear
from engines.gguf.rope import FactoredRoPE

__all__ = ["can_fuse", "fuse"]


def can_fuse() -> bool:
    """Whether the compiled back end serves the default device."""
    return backend().name == "cpu"


def fuse(model: Any, activation: str | None) -> None:
    """Replaces leaves, gated MLPs and whole blocks of a model that is filled. ``activation`` is that of its gated MLPs, one of
    :data:`~engines.gguf.fused_leaves.ACTIVATIONS`; None: it has none of the usual form. Does nothing where :func:`can_fuse` is
    False."""
    compiled = extension()
    if compiled is None or not can_fuse():
        return
    leaves: Any = tree_flatten(model.leaf_modules(), is_leaf=lambda x: isinstance(x, Module))
    fused = [(path, leaf) for path, old in leaves if (leaf := _leaf(old, compiled)) is not None]
    model.update_modules(tree_unflatten(fused))
    layers = model.model.layers
    for index, layer in enumerate(layers):
        block = fused_block(layer, compiled)
        if block is not None:
            layers[index] = block
        elif activation is not None and _is_gated(layer.mlp):
            layer.mlp = GatedMLP(layer.mlp, activation, compiled)


def _leaf(old: Any, compiled: Extension) -> Any:
    if type(old) is RMSNorm:
        return FusedRMSNorm(old.weight, old.eps, compiled)
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
    return None


def _is_gated(mlp: Any) -> bool:
    """Whether this is gate, up and down projections on K-quant blocks, and nothing else."""
    names = {"gate_proj", "up_proj", "down_proj"}
    return set(mlp.children()) == names and all(isinstance(mlp[name], KQuantLinear) for name in names)
