"""The parts of an encoder's layer: norm, attention, feed-forward."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from engines.encoders.masks import Masks
from engines.encoders.shape import Layer, Shape
from engines.encoders.weights import Linear
from engines.gguf.experts import KQuantSwitchLinear
from engines.gguf.fused import can_fuse
from engines.gguf.kernels.cpu import extension

__all__ = ["Attention", "FeedForward", "Mixture", "Norm", "rms_norm"]


class Norm:
    """Layer norm or RMS norm over the last axis, of a sum where ``added`` is given."""

    def __init__(self, kind: str, weight: mx.array, bias: mx.array | None, epsilon: float) -> None:
        self._layer = kind == "layer"
        self._weight = weight
        self._bias = bias
        self._epsilon = epsilon
        self._compiled = extension() if can_fuse() else None

    def __call__(self, x: mx.array, added: mx.array | None = None) -> mx.array:
        if self._layer and self._compiled is not None:
            return self._compiled.layer_norm(x, added, self._weight, self._bias, self._epsilon)
        if added is not None:
            x = x + added
        if self._layer:
            return mx.fast.layer_norm(x, self._weight, self._bias, self._epsilon)
        return rms_norm(x, self._weight, self._epsilon)


def rms_norm(x: mx.array, weight: mx.array, epsilon: float) -> mx.array:
    """By the compiled kernels where there are such."""
    compiled = extension() if can_fuse() else None
    return mx.fast.rms_norm(x, weight, epsilon) if compiled is None else compiled.rms_norm(x, weight, epsilon)


class Attention:
    """Queries, keys and values from one matrix (``joined``) or three; then attention and the output matrix."""

    def __init__(
        self,
        shape: Shape,
        layer: Layer,
        projections: tuple[Linear, ...],
        output: Linear,
        head_norms: tuple[Norm, Norm] | None = None,
        whole_norms: tuple[Norm, Norm] | None = None,
    ) -> None:
        """``head_norms`` are of each head of queries and keys, ``whole_norms`` of all heads' features together."""
        self._shape = shape
        self._layer = layer
        self._projections = projections
        self._output = output
        self._head_norms = head_norms
        self._whole_norms = whole_norms
        self._compiled = extension() if can_fuse() else None

    def __call__(self, x: mx.array, masks: Masks) -> mx.array:
        """x [batch, tokens, width] to the same."""
        shape, layer = self._shape, self._layer
        batch, tokens, _ = x.shape
        queries, keys, values = self._project(x)
        if self._whole_norms is not None:
            queries, keys = self._whole_norms[0](queries), self._whole_norms[1](keys)
        heads: list[mx.array] = [part.reshape(batch, tokens, -1, shape.head_width) for part in (queries, keys, values)]
        if self._head_norms is not None:
            heads[0], heads[1] = self._head_norms[0](heads[0]), self._head_norms[1](heads[1])
        q, k, v = (part.transpose(0, 2, 1, 3) for part in heads)
        if layer.rope_theta is not None:
            q, k = self._rotate(q, layer.rope_theta), self._rotate(k, layer.rope_theta)
        mask = masks.of(layer.window)
        attended = self._attend(q, k, v, mask)
        return self._output(attended.transpose(0, 2, 1, 3).reshape(batch, tokens, -1))

    def _project(self, x: mx.array) -> list[mx.array]:
        if len(self._projections) == 3:
            return [projection(x) for projection in self._projections]
        joined = self._projections[0](x)
        query, key = self._shape.heads * self._shape.head_width, self._shape.kv_heads * self._shape.head_width
        return [joined[..., :query], joined[..., query : query + key], joined[..., query + key :]]

    def _rotate(self, x: mx.array, theta: float) -> mx.array:
        width, interleaved = self._shape.head_width, self._shape.rope_interleaved
        if self._compiled is not None:
            return self._compiled.rope(x, width, interleaved, theta, 1.0, 0)
        return mx.fast.rope(x, width, traditional=interleaved, base=theta, scale=1.0, offset=0)

    def _attend(self, q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None) -> mx.array:
        causal = self._shape.causal and mask is None and q.shape[2] > 1
        if self._compiled is not None and q.dtype == mx.float32:
            return self._compiled.attention(q, k, v, self._shape.scale, causal, mask)
        how: Any = "causal" if causal else mask
        if mask is not None and mask.dtype == mx.float32:
            how = mask.astype(q.dtype)
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=self._shape.scale, mask=how)


class FeedForward:
    """``down(activation(up(x)))``, or ``down(activation(gate(x)) * up(x))``."""

    def __init__(self, activation: str, up: Linear, down: Linear, gate: Linear | None = None) -> None:
        self._activation = activation
        self._up = up
        self._down = down
        self._gate = gate

    def __call__(self, x: mx.array) -> mx.array:
        if self._gate is None:
            return self._down(self._up(x, self._activation))
        return self._down(self._gate.gated(self._up, x, self._activation))


class Mixture:
    """Experts without a gate of their own, weighed by a router's softmax; the weights are not normalised again."""

    def __init__(
        self, activation: Any, router: Linear, up: KQuantSwitchLinear, down: KQuantSwitchLinear, used: int
    ) -> None:
        self._activation = activation
        self._router = router
        self._up = up
        self._down = down
        self._used = used

    def __call__(self, x: mx.array) -> mx.array:
        weights = mx.softmax(self._router(x).astype(mx.float32), axis=-1)
        chosen = mx.argpartition(-weights, self._used - 1, axis=-1)[..., : self._used]
        share = mx.take_along_axis(weights, chosen, axis=-1).astype(x.dtype)
        hidden = self._activation(self._up(mx.expand_dims(x, (-2, -3)), chosen))
        out = self._down(hidden, chosen)[..., 0, :]
        return (out * share[..., None]).sum(axis=-2)
