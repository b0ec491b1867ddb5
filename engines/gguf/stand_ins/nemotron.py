"""nemotron: norms that add nothing to their weight, since the file has added it; RMS norms where the model has such (arcee)."""

from __future__ import annotations

from typing import Any, Final

from mlx.nn.layers.normalization import LayerNorm, RMSNorm
from mlx.utils import tree_unflatten
from mlx_lm.models.nemotron import NemotronLayerNorm1P

__all__ = ["adapt"]

_NORMS: Final[dict[str, Any]] = {"layer": LayerNorm, "rms": RMSNorm}


def adapt(model: Any, plan: Any) -> None:
    """Replaces every norm by what the plan's configuration names."""
    norm_class = _NORMS[plan.config["norm"]]
    norms = [
        (path, norm_class(norm.weight.shape[0], norm.eps))
        for path, norm in model.named_modules()
        if isinstance(norm, NemotronLayerNorm1P)
    ]
    model.update_modules(tree_unflatten(norms))
