"""A decoder's layer whose graph is built once, around its attention, in the place of mlx-lm's own block. For GPUs.

    q, k, v = rope(norm(split(norm(x) @ qkv.T)))             kept by mx.compile
    keys, values = cache                                     mlx-lm's, whatever its kind
    attended = attention(q, k, v)                            mx.fast.scaled_dot_product_attention, as stock code reaches it
    h = x + attended @ o.T, out = h + mlp(norm(h))           kept by mx.compile

Over a batch's cache of whole contexts attention is a part of what is kept, where the back end has a kernel for it: MLX's own takes
no mask of padding, and without one it is a dozen operations a layer.

A GPU decodes a token of an 8B model in less time than Python needs to describe it, so what does not change from one token to the
next is traced once and replayed. Only steps of one token a row are: prompts come in too many lengths, and their kernels take
longer than their description. The same leaves are called in the same order, so the answer is the stock block's. Sums with the
norms that follow them, and the rotation of queries and keys, are one kernel each where the back end has such kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import BatchKVCache

from engines.gguf.block_parts import BlockParts, block_parts, watch
from engines.gguf.kernels.gathering import LayerBackend

__all__ = ["CompiledBlock", "compiled_blocks"]


class CompiledBlock(Module):
    """The stock block's children under their names, and its answer. A leaf that is replaced later (by one with an adapter, say)
    is seen: the stock block then computes."""

    def __init__(self, stock: Any, parts: BlockParts, shared: Shared, device: LayerBackend | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for name, child in stock.items():
            self[name] = child
        self.use_sliding = getattr(stock, "use_sliding", False)  # mlx-lm's llama chooses a layer's mask by it
        self._call_stock = type(stock).__call__  # given this module, whose children may have been replaced
        self._norm: Callable[[mx.array], mx.array] = parts.norm.__call__
        self._before: Callable[..., Any] = mx.compile(parts.before_attention)
        self._after: Callable[..., Any] = mx.compile(parts.after_attention)
        self._scale = scale = stock.self_attn.scale
        self._shared = shared
        self._attends: Callable[[mx.Dtype, int], bool] = lambda dtype, features: False
        if device is not None:
            attend, after = device.attend, parts.after_attention

            def attend_after(q: mx.array, k: mx.array, v: mx.array, left: mx.array, used: mx.array, x: mx.array) -> Any:
                return after(attend(q, k, v, left, used, scale), x)

            self._attends = device.attends
            self._attend_after: Callable[..., Any] = mx.compile(attend_after)
        self._replaced: Callable[[], bool] = lambda: False

    def watch(self, leaves: list[tuple[Any, str]]) -> None:
        """Names the leaves on whose account the stock block is to compute once they have been replaced."""
        # A function, since a list would be taken for children of this module.
        self._replaced = watch(leaves)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> Any:
        """x [rows, tokens, width]; one token a row, with a cache, takes the short way."""
        if cache is None or x.shape[1] != 1 or self._replaced():
            return self._call_stock(self, x, mask, cache)
        normed = self._shared.take(x)
        queries, keys, values = self._before(
            self._norm(x) if normed is None else normed, self._shared.offset(cache.offset)
        )
        if type(cache) is BatchKVCache and self._attends(queries.dtype, queries.shape[-1]):
            self._shared.append(cache, keys, values)
            used = self._shared.used(cache._idx)
            answer = self._attend_after(queries, cache.keys, cache.values, cache.left_padding, used, x)
            return self._shared.keep(*answer)
        keys, values = cache.update_and_fetch(keys, values)
        attended = scaled_dot_product_attention(queries, keys, values, cache=cache, scale=self._scale, mask=mask)
        return self._shared.keep(*self._after(attended, x))


class Shared:
    """What a model's layers hand on to each other: offsets and lengths as arrays, since a number would be a part of what is kept,
    and what the norm of the next layer makes of a layer's answer."""

    def __init__(self) -> None:
        self._value = -1
        self._array: mx.array | None = None
        self._length = -1
        self._used: mx.array | None = None
        self._offset: mx.array | None = None
        self._next_offset: mx.array | None = None
        self._answer: mx.array | None = None
        self._normed: mx.array | None = None

    def offset(self, offset: int | mx.array) -> mx.array:
        """int32, of all rows or of each."""
        if isinstance(offset, mx.array):
            return offset
        if self._array is None or offset != self._value:
            self._value, self._array = offset, mx.array(offset, dtype=mx.int32)
        return self._array

    def used(self, length: int) -> mx.array:
        """int32 [1]."""
        if self._used is None or length != self._length:
            self._length, self._used = length, mx.array([length], dtype=mx.int32)
        return self._used

    def append(self, cache: Any, keys: mx.array, values: mx.array) -> None:
        """One token a row goes into a batch's cache, as its ``update_and_fetch`` does it, but for slices that nobody needs; layers
        that hold the same offsets (``engines.text.cache_room``) go on holding the same."""
        before, at = cache.offset, cache._idx
        if cache.keys is None or at >= cache.keys.shape[2]:
            cache.update_and_fetch(keys, values)
        else:
            cache._idx = at + 1
            cache.keys[..., at : at + 1, :] = keys
            cache.values[..., at : at + 1, :] = values
        if self._offset is not before:
            self._offset, self._next_offset = before, before + 1
        cache.offset = self._next_offset

    def keep(self, answer: mx.array, normed: mx.array | None = None) -> mx.array:
        """Holds the normed answer, if there is one, for whoever is given the answer next."""
        self._answer, self._normed = (answer, normed) if normed is not None else (None, None)
        return answer

    def take(self, x: mx.array) -> mx.array | None:
        """The norm of this very array, once; None where it has not been computed."""
        normed = self._normed if self._answer is x else None
        self._answer = self._normed = None
        return normed


def compiled_blocks(layers: Sequence[Any], device: LayerBackend | None) -> list[Any]:
    """The blocks with their graphs kept; those that are not known as they are. ``device`` has kernels for what stands between
    products, or is None."""
    shared = Shared()
    parts = [block_parts(*pair, device) for pair in zip(layers, [*layers[1:], None], strict=True)]
    blocks = [
        stock if part is None else CompiledBlock(stock, part, shared, device)
        for stock, part in zip(layers, parts, strict=True)
    ]
    now = {id(stock): block for stock, block in zip(layers, blocks, strict=True)}
    for block, part in zip(blocks, parts, strict=True):
        if part is not None:
            block.watch([(now.get(id(owner), owner), name) for owner, name in part.leaves])
    return blocks
