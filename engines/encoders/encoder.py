"""The forward pass of every family: tokens of several texts to their features."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from engines.encoders.blocks import Attention, FeedForward, Mixture, Norm
from engines.encoders.masks import Masks
from engines.encoders.shape import Shape
from engines.gguf.layers import KQuantEmbedding

__all__ = ["Block", "Encoded", "Encoder", "Pass"]


@dataclass(frozen=True)
class Block:
    """One layer. ``before_*`` are norms of what a part reads, ``within_*`` of what it answers, ``after_*`` of the sum."""

    attention: Attention
    feed_forward: FeedForward | Mixture
    before_attention: Norm | None = None
    within_attention: Norm | None = None
    after_attention: Norm | None = None
    before_feed_forward: Norm | None = None
    within_feed_forward: Norm | None = None
    after_feed_forward: Norm | None = None

    def __call__(self, x: mx.array, masks: Masks) -> mx.array:
        attended = self.attention(x if self.before_attention is None else self.before_attention(x), masks)
        if self.within_attention is not None:
            attended = self.within_attention(attended)
        x = x + attended if self.after_attention is None else self.after_attention(attended, x)
        made = self.feed_forward(x if self.before_feed_forward is None else self.before_feed_forward(x))
        if self.within_feed_forward is not None:
            made = self.within_feed_forward(made)
        return x + made if self.after_feed_forward is None else self.after_feed_forward(made, x)


@dataclass(frozen=True)
class Encoded:
    """Features [batch, tokens, width] in the compute dtype; what stands behind a row's length is padding."""

    features: mx.array
    lengths: mx.array  # int32 [batch]

    def first(self) -> mx.array:
        """Of each row's first token: [batch, width]."""
        return self.features[:, 0]

    def last(self) -> mx.array:
        """Of each row's last token: [batch, width]."""
        return mx.take_along_axis(self.features, (self.lengths - 1)[:, None, None], axis=1)[:, 0]

    def mean(self) -> mx.array:
        """Over each row's tokens: float32 [batch, width]."""
        features, lengths = self.features.astype(mx.float32), self.lengths[:, None]
        if features.shape[1] == 1:
            return features[:, 0]
        real = mx.arange(features.shape[1])[None, :] < lengths
        # As a product: one pass over the features.
        return (real.astype(mx.float32)[:, None, :] @ features)[:, 0] / lengths.astype(mx.float32)


class Encoder:
    """Any thread may make one; the device thread runs it.

    Args:
        shape: the arithmetic.
        words: the token embedding.
        positions: learned positions [length, width], None without.
        types: token types [count, width], None without.
        embedding_norm: of the sum of the three.
        blocks: the layers.
        final_norm: of the last layer's answer.
    """

    def __init__(
        self,
        shape: Shape,
        words: KQuantEmbedding,
        positions: mx.array | None,
        types: mx.array | None,
        embedding_norm: Norm | None,
        blocks: Sequence[Block],
        final_norm: Norm | None,
    ) -> None:
        self.shape = shape
        self.words = words
        self._types = types
        self.type_count = 0 if types is None else types.shape[0]
        self._norm = embedding_norm
        self.blocks = blocks
        self.final_norm = final_norm
        # Where all tokens are of the first type, that is a part of their places.
        self._places = positions
        if types is not None:
            self._places = types[:1] if positions is None else positions + types[:1]
            mx.eval(self._places)
        self._positions = positions
        self._offset = shape.position_offset if positions is not None else 0

    def __call__(self, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> Encoded:
        """Rows of token ids, each at least one, and their token types (all 0 where None)."""
        run = Pass(self, rows, types)
        run.advance(None)
        return run.encoded()

    def embed(
        self, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None, length: int | None
    ) -> tuple[mx.array, Masks]:
        """What the first layer reads, and the batch's masks. ``length`` as :class:`Pass` has it."""
        lengths = [len(row) for row in rows]
        longest = max(lengths) if length is None else length
        x = self.words(mx.array(_padded(rows, longest)))
        if self.shape.embedding_scale != 1.0:
            x = x * self.shape.embedding_scale
        added = self._added(longest, x.shape, types if types is not None and any(map(any, types)) else None)
        if self._norm is not None:
            x = self._norm(x, added)
        elif added is not None:
            x = x + added
        return x, Masks(self.shape, mx.array(lengths, mx.int32), longest, padded=min(lengths) != longest)

    def _added(self, longest: int, shape: Sequence[int], types: Sequence[Sequence[int]] | None) -> mx.array | None:
        """What joins the words: places and token types, of the batch's shape."""
        if self.type_count < 2:  # the tokenizer may tell two texts apart where the model does not
            types = None
        table = self._places if types is None else self._positions
        added = None
        if table is not None:
            added = table if table.shape[0] == 1 else table[self._offset : self._offset + longest]
            added = mx.broadcast_to(added[None], list(shape))
        if types is not None and self._types is not None:
            chosen = self._types[mx.array(_padded(types, longest))]
            added = chosen if added is None else added + chosen
        return added


class Pass:
    """One batch on its way through an encoder's layers.

    Args:
        rows: token ids, at least one each.
        types: their token types; all 0 where None.
        length: what rows are padded to, no more than the encoder's context; None: the longest's.
        layers_at_once: layers that are dispatched before they are waited for; None: all. A GPU keeps what they compute until then.
    """

    def __init__(
        self,
        encoder: Encoder,
        rows: Sequence[Sequence[int]],
        types: Sequence[Sequence[int]] | None = None,
        length: int | None = None,
        layers_at_once: int | None = None,
    ) -> None:
        self._encoder = encoder
        self._layers_at_once = layers_at_once
        self._x, self._masks = encoder.embed(rows, types, length)
        self._layer = 0

    def advance(self, seconds: float | None) -> bool:
        """Layers until so much time has passed, at least one; all of them, not evaluated yet, where that is None. True when it was
        the last."""
        until = None if seconds is None else time.monotonic() + seconds
        blocks = self._encoder.blocks
        while self._layer < len(blocks):
            self._x = blocks[self._layer](self._x, self._masks)
            self._layer += 1
            if until is not None:
                mx.eval(self._x)
                if time.monotonic() >= until and self._layer < len(blocks):
                    return False
            elif self._layers_at_once is not None and self._layer % self._layers_at_once == 0:
                mx.eval(self._x)
        return True

    def encoded(self) -> Encoded:
        """Once all layers are through."""
        norm = self._encoder.final_norm
        return Encoded(self._x if norm is None else norm(self._x), self._masks.lengths)


def _padded(rows: Sequence[Sequence[int]], longest: int) -> np.ndarray:
    """int32 [rows, longest], zeros behind each row."""
    padded = np.zeros((len(rows), longest), np.int32)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded
