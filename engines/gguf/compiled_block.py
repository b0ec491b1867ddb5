"""A decoder's layer whose graph is built once, around its attention, in the place of mlx-lm's own block. For GPUs.

    q, k, v = rope(norm(split(norm(x) @ qkv.T)))             kept by mx.compile
    keys, values = cache                                     mlx-lm's, whatever its kind
    attended = attention(q, k, v)                            mx.fast.scaled_dot_product_attention, as stock code reaches it
    h = x + attended @ o.T, out = h + mlp(norm(h))           kept by mx.compile

A GPU decodes a token of an 8B model in less time than Python needs to describe it, so what does not change from one token to the
next is traced once and replayed. Only steps of one token a row are: prompts come in too many lengths, and their kernels take
longer than their description. The same leaves are called in the same order, so the answer is the stock block's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.base import scaled_dot_product_attention

from engines.gguf.block_parts import BlockParts, block_parts, watch

__all__ = ["CompiledBlock", "compiled_block"]


class CompiledBlock(Module):
    """The stock block's children under their names, and its answer. A leaf that is replaced later (by one with an adapter, say)
    is seen: the stock block then computes."""

    def __init__(self, stock: Any, parts: BlockParts, offsets: Offsets) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for name, child in stock.items():
            self[name] = child
        self.use_sliding = getattr(stock, "use_sliding", False)  # mlx-lm's llama chooses a layer's mask by it
        self._call_stock = stock.__call__  # bound: as a module it would be a child, and its parameters twice there
        self._before: Callable[..., Any] = mx.compile(parts.before_attention)
        self._after: Callable[..., Any] = mx.compile(parts.after_attention)
        self._scale = stock.self_attn.scale
        self._offsets = offsets
        # A function, since a list would be taken for children of this module.
        self._replaced = watch(parts.leaves)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
        """x [rows, tokens, width]; one token a row, with a cache, takes the short way."""
        if cache is None or x.shape[1] != 1 or self._replaced():
            return self._call_stock(x, mask, cache)
        queries, keys, values = self._before(x, self._offsets.array(cache.offset))
        keys, values = cache.update_and_fetch(keys, values)
        attended = scaled_dot_product_attention(queries, keys, values, cache=cache, scale=self._scale, mask=mask)
        return self._after(attended, x)


class Offsets:
    """Offsets as arrays, since a number would be a part of what is kept. The layers of a model ask for the same one in turn."""

    def __init__(self) -> None:
        self._value = -1
        self._array: mx.array | None = None

    def array(self, offset: int | mx.array) -> mx.array:
        """int32, of one row or of each."""
        if isinstance(offset, mx.array):
            return offset
        if self._array is None or offset != self._value:
            self._value, self._array = offset, mx.array(offset, dtype=mx.int32)
        return self._array


def compiled_block(stock: Any, offsets: Offsets) -> CompiledBlock | None:
    """The block with its graph kept; None for a block that is not known. ``offsets`` is shared by a model's blocks."""
    parts = block_parts(stock)
    return None if parts is None else CompiledBlock(stock, parts, offsets)
