"""Rotary embedding: the scalings that metadata can ask for, and a leaf for wavelengths that the file scales one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from engines.gguf.config import MAX_CONTEXT, Hyperparameters

__all__ = ["FactoredRoPE", "RopeFactors", "stock_scaling"]


@dataclass(frozen=True)
class RopeFactors:
    """Where the factors of a :class:`FactoredRoPE` lie, and its other parameters."""

    tensor: str  # float32, dims / 2
    dims: int
    base: float
    traditional: bool
    magnitude: float = 1.0


class FactoredRoPE(Module):
    """Rotates pair ``i`` of the first ``dims`` features by position / (``base ** (2i / dims)`` × ``factors[i]``).

    Llama 3 and longrope are of this form, with factors the converter has worked out. ``traditional`` pairs neighbouring
    features, otherwise the two halves; what is rotated is multiplied by ``magnitude``. Takes the place of a stock rotary
    module: ``[..., tokens, features]`` and the offset of the first token, or of each row's.
    """

    def __init__(self, factors: mx.array, *, dims: int, base: float, traditional: bool, magnitude: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dims = dims
        self.traditional = traditional
        self.magnitude = magnitude
        # The underscore keeps it out of the module's parameters, and so in float32.
        self._wavelengths = factors * base ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims)

    @property
    def wavelengths(self) -> mx.array:
        """Tokens a pair takes for one radian, float32 [dims / 2]."""
        return self._wavelengths

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        if self.magnitude != 1.0:
            x = x.at[..., : self.dims].multiply(self.magnitude)
        return mx.fast.rope(
            x, self.dims, traditional=self.traditional, base=None, scale=1.0, offset=offset, freqs=self._wavelengths
        )


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
