"""A back end with the kernels between a layer's products, on any device."""

from __future__ import annotations

import mlx.core as mx

from engines.gguf.kernels.gathering import Rotation

__all__ = ["Device"]


class Device:
    """A back end with the kernels between products, by MLX's operations; or with none that fit."""

    def __init__(self, able: bool = True) -> None:
        self.able = able
        self.calls: list[str] = []

    def sum_norm(
        self, x: mx.array, r: mx.array, weight: mx.array, eps: float, inner: tuple[mx.array, float] | None
    ) -> tuple[mx.array, mx.array] | None:
        self.calls.append("sum_norm")
        h = x + (r if inner is None else mx.fast.rms_norm(r, *inner))
        return (h, mx.fast.rms_norm(h, weight, eps)) if self.able else None

    def rotate(
        self, queries: mx.array, keys: mx.array, offset: mx.array, rotation: Rotation
    ) -> tuple[mx.array, mx.array] | None:
        self.calls.append("rotate")
        if not self.able:
            return None
        base, wavelengths = (rotation.base, None) if rotation.wavelengths is None else (None, rotation.wavelengths)
        queries, keys = (x.at[..., : rotation.dims].multiply(rotation.magnitude) for x in (queries, keys))
        rotated = [
            mx.fast.rope(
                x,
                rotation.dims,
                traditional=rotation.traditional,
                base=base,
                scale=rotation.scale,
                offset=offset,
                freqs=wavelengths,
            )
            for x in (queries, keys)
        ]
        return rotated[0], rotated[1]

    def attends(self, dtype: mx.Dtype, features: int) -> bool:
        return self.able

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, left: mx.array, used: mx.array, scale: float
    ) -> mx.array:
        self.calls.append("attend")
        at = mx.arange(keys.shape[2])
        mask = (at >= left[:, None]) & (at < used)
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask[:, None, None, :])
