"""The rotary scalings that metadata can ask for. Without MLX, as all of a family's plan, so that the gateway can make one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from engines.gguf.config import MAX_CONTEXT, Hyperparameters

__all__ = ["RopeFactors", "ScaledRope", "stock_scaling"]


@dataclass(frozen=True)
class RopeFactors:
    """Where the factors of a :class:`~engines.gguf.rope.FactoredRoPE` lie, and its other parameters."""

    tensor: str  # float32, dims / 2
    dims: int
    base: float
    traditional: bool
    magnitude: float = 1.0
    module: str = "model.layers.{i}.self_attn.rope"  # whose place it takes
    only: str | None = None  # the set of layers of the plan that it rotates; None: all
    stored: int | None = None  # factors in the tensor, of which the first are used; None: just dims / 2


@dataclass(frozen=True)
class ScaledRope:
    """A rotary embedding of mlx-lm's own, in the place of one whose class takes no scaling from its configuration."""

    scaling: dict[str, Any]  # of :func:`stock_scaling`
    dims: int
    base: float
    traditional: bool
    module: str = "model.layers.{i}.self_attn.rope"  # whose place it takes
    only: str | None = None  # the set of layers of the plan that it rotates; None: all


def stock_scaling(parameters: Hyperparameters, trained_context: int, kinds: tuple[str, ...]) -> dict[str, Any] | None:
    """The ``rope_scaling`` of a stock configuration for the ``rope.scaling`` keys; None for no scaling.

    ``kinds`` are those that the family has (of linear, yarn, longrope); UnsupportedModel for any other. Longrope needs no
    configuration: its factors are tensors.
    """
    old_factor = parameters.number("rope.scale_linear", 1.0)
    factor = parameters.number("rope.scaling.factor", old_factor)
    # llama.cpp's default: a factor without a kind is linear.
    kind = parameters.text("rope.scaling.type", "linear")
    original = parameters.integer("rope.scaling.original_context_length", trained_context, most=MAX_CONTEXT)
    if kind == "none" or (kind == "linear" and math.isclose(factor, 1.0)):
        return None
    if kind not in kinds:
        key = "rope.scaling.type" if parameters.has("rope.scaling.type") else "rope.scaling.factor"
        raise parameters.refusal(key, f"rotary scaling of these kinds is supported here: none, {', '.join(kinds)}")
    if kind == "longrope":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": parameters.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": parameters.number("rope.scaling.yarn_beta_slow", 1.0),
    }
