"""The arithmetic of an encoder, as numbers and switches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["ACTIVATIONS", "Layer", "Shape"]

ACTIVATIONS: Final = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "geglu": "gelu",
}
"""The names that checkpoints use → :data:`engines.gguf.fused.ACTIVATIONS`."""

# On an H200 the launches of a layer take as long as so many operations: six layers of 384 features took 4 ms for one token as for
# 16,384.
_FREE_FLOPS: Final = 8e10
_LEAST_FREE, _MOST_FREE = 256, 16384


@dataclass(frozen=True)
class Layer:
    """What differs between the layers of one model."""

    rope_theta: float | None = None  # None: no rotary embedding
    window: int | None = None  # a token sees those at most so far away, on either side; None: all
    experts: bool = False  # a mixture in the feed-forward part


@dataclass(frozen=True)
class Shape:
    """Sizes are in numbers of features and tokens.

    ``pre_norm`` says that norms stand before attention and feed-forward and not behind the sums. ``context`` is the longest
    input, with what the tokenizer puts around it.
    """

    layers: tuple[Layer, ...]
    width: int
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int
    vocabulary: int
    context: int
    norm: Literal["layer", "rms"]
    epsilon: float
    activation: str  # of engines.gguf.fused.ACTIVATIONS
    pre_norm: bool = False
    causal: bool = False
    alibi: bool = False
    position_offset: int = 0  # of the first token, in the table of learned positions
    rope_interleaved: bool = False
    embedding_scale: float = 1.0
    attention_scale: float | None = None  # None: 1 / sqrt(head_width)
    norm_offset: float = 0.0  # added to the weights of norms as the file has them
    experts_used: int = 0

    @property
    def scale(self) -> float:
        return self.head_width**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def flops_per_token(self) -> float:
        """Of the matrices, at most: two for each weight."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_width
        return 2.0 * len(self.layers) * self.width * (attention + 3 * self.feed_forward)

    @property
    def free_places(self) -> int:
        """Tokens, padding included, that a batch on a GPU may have and still take no longer than one of a single token."""
        return max(_LEAST_FREE, min(_MOST_FREE, int(_FREE_FLOPS * len(self.layers) / self.flops_per_token)))

    def row_bytes(self, length: int, float_bytes: int, *, cuda: bool = False) -> int:
        """Activations that live at once for a row of ``length`` tokens, in bytes: the residual, queries, keys, values and what
        is attended, and the feed-forward part. Attention itself needs a few blocks of scores, unless a mask of floats is
        made (ALiBi, windows; and on CUDA MLX makes floats for each head of any mask)."""
        attention = self.width + (2 * self.heads + 2 * self.kv_heads) * self.head_width
        features = 3 * self.width + max(attention, 3 * self.feed_forward)
        windowed = any(x.window for x in self.layers)
        floats = self.alibi or (cuda and (windowed or not self.causal))
        masks = length * (self.heads * float_bytes if floats else 2 if windowed else 0)
        return length * (features * float_bytes + masks)
