"""Rotary embedding with wavelengths that the file scales one by one: a leaf in place of the stock one."""

from __future__ import annotations

import mlx.core as mx
from mlx.nn.layers.base import Module

__all__ = ["FactoredRoPE"]


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
