"""nemotron: layer norms that add nothing to their weight, since the file has added it."""

from __future__ import annotations

from typing import Any

from mlx.nn.layers.normalization import LayerNorm
from mlx.utils import tree_unflatten
from mlx_lm.models.nemotron import NemotronLayerNorm1P

__all__ = ["adapt"]


def adapt(model: Any, plan: Any) -> None:
    """Replaces every norm."""
    norms = [
        (path, LayerNorm(norm.weight.shape[0], norm.eps))
        for path, norm in model.named_modules()
        if isinstance(norm, NemotronLayerNorm1P)
    ]
    model.update_modules(tree_unflatten(norms))
