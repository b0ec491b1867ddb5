"""Attention over prompts in few shapes, for CUDA, where MLX has cuDNN build a graph for each new one.

Building takes 45 to 70 ms on an H200, for each prompt of a length that was not seen before and each of its chunks; the attention
itself takes 0.1 ms, and 256 graphs are kept. So queries, keys and values are padded to few lengths, and the answer is cut.

No mask is made for causal attention, whose last query sees the last key. Keys padded behind the real ones are hidden from the real
queries where as many queries are padded behind those; and queries padded before them see a part of the keys, and change nothing::

    queries     before + real + after           real query i sees key j ≤ i + keys - queries, as it does without
    keys                 real + after

"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

__all__ = ["MOST_KEYS", "PaddedAttention", "Padding", "causal_padding", "masked_padding", "read_usual_prompts"]

MOST_KEYS: Final = 32768
"""Up to so many keys are padded; more are worth a graph of their own."""

_STEPS: Final = ((2048, 256), (8192, 512), (MOST_KEYS, 1024))  # up to so many keys, multiples of so many
_SQUARES: Final = (128, 256, 512)  # of so many keys, as many queries: it takes no time
_QUERIES: Final = (128, 256, 512, 1024)  # then multiples of the last
_MASK_BYTES: Final = 256 << 20  # that MLX makes of a mask, for every head; a larger one is left as it is
_HALVES: Final = (mx.float16, mx.bfloat16)
_WIDEST_HEAD: Final = 128  # that cuDNN takes


@dataclass(frozen=True)
class Padding:
    """Tokens of padding: ``before`` and ``after`` the queries, ``keys`` behind keys and values."""

    before: int
    after: int
    keys: int


def causal_padding(queries: int, keys: int) -> Padding:
    """Of ``queries`` that are the last of ``keys``, without a mask."""
    most = _keys(keys)
    after = most - keys
    padded = most if most in _SQUARES else min(_queries(queries + after), most)
    return Padding(padded - queries - after, after, after)


def masked_padding(queries: int, keys: int) -> Padding:
    """Where a mask hides the padding."""
    return Padding(0, _queries(queries) - queries, _keys(keys) - keys)


def read_usual_prompts(model: Any) -> None:
    """So that the first prompts of up to 512 tokens find their graphs; while a model loads, with the adapter open."""
    for tokens in _SQUARES:
        cache = make_prompt_cache(model)
        model(mx.zeros((1, tokens), mx.uint32), cache=cache)
        mx.eval([layer.state for layer in cache])
    mx.clear_cache()


def _keys(tokens: int) -> int:
    small = next((length for length in _SQUARES if length >= tokens), None)
    if small is not None:
        return small
    step = next(step for most, step in _STEPS if tokens <= most)
    return -(-tokens // step) * step


def _queries(tokens: int) -> int:
    most = _QUERIES[-1]
    return next((length for length in _QUERIES if length >= tokens), -(-tokens // most) * most)


class PaddedAttention:
    """Stands for ``mx.fast.scaled_dot_product_attention``, and answers what it would, but for rounding. One thread.

    Args:
        stock: MLX's own, which computes.
        dtypes: of what is padded. The rest goes to ``stock`` as it is, and so do single queries, sinks, and heads that cuDNN
            does not take.
    """

    def __init__(self, stock: Callable[..., Any], dtypes: tuple[mx.Dtype, ...] = _HALVES) -> None:
        self._stock = stock
        self._dtypes = dtypes
        self._of: Callable[[], mx.array | None] = _none  # the mask that the layer before was given
        self._masked: mx.array | None = None  # what was made of it, or of none; no longer than it lives
        self._for: tuple[Any, ...] = ()  # and for what

    def __call__(
        self, q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Any = None, sinks: Any = None, **others: Any
    ) -> Any:
        if q.shape[2] > 1 and sinks is None and not others and self._fits(q, k, v):
            if isinstance(mask, str):
                if mask == "causal" and q.shape[2] <= k.shape[2]:
                    return self._attend(q, k, v, scale, mask, causal_padding(q.shape[2], k.shape[2]))
            else:
                padding = masked_padding(q.shape[2], k.shape[2])
                if self._mask_bytes(q, k, padding) <= _MASK_BYTES:
                    return self._attend(q, k, v, scale, self._padded(mask, q.shape[2], k.shape[2], padding), padding)
        return self._stock(q, k, v, scale=scale, mask=mask, sinks=sinks, **others)

    def _fits(self, q: mx.array, k: mx.array, v: mx.array) -> bool:
        return (
            k.shape[2] <= MOST_KEYS
            and q.dtype in self._dtypes
            and q.dtype == k.dtype == v.dtype
            and all(x.shape[3] % 8 == 0 and x.shape[3] <= _WIDEST_HEAD for x in (q, v))
        )

    def _mask_bytes(self, q: mx.array, k: mx.array, padding: Padding) -> int:
        rows, heads, queries, _ = q.shape
        return rows * heads * (queries + padding.after) * (k.shape[2] + padding.keys) * q.dtype.size

    def _attend(self, q: mx.array, k: mx.array, v: mx.array, scale: float, mask: Any, padding: Padding) -> mx.array:
        queries = q.shape[2]
        q = _pad(q, padding.before, padding.after)
        k, v = _pad(k, 0, padding.keys), _pad(v, 0, padding.keys)
        answer: mx.array = self._stock(q, k, v, scale=scale, mask=mask)
        return answer[:, :, padding.before : padding.before + queries]

    def _padded(self, mask: mx.array | None, queries: int, keys: int, padding: Padding) -> mx.array | None:
        """The mask with the padding in it; the layers of a pass have the same, and share it."""
        if mask is None and padding.keys == 0:
            return None
        wanted = (mask is None, queries, keys)
        if self._masked is None or self._for != wanted or self._of() is not mask:
            self._masked, self._for = _padded(mask, queries, keys, padding), wanted
            self._of = _none if mask is None else weakref.ref(mask, self._drop)
        return self._masked

    def _drop(self, of: Any) -> None:
        if self._of is of:
            self._of, self._masked = _none, None


def _none() -> None:
    return None


def _pad(x: mx.array, before: int, after: int) -> mx.array:
    """Along the tokens, with zeros; contiguous in any case, since a graph is of one layout."""
    if not before and not after:
        return mx.contiguous(x)
    return mx.pad(x, [(0, 0), (0, 0), (before, after), (0, 0)])


def _padded(mask: mx.array | None, queries: int, keys: int, padding: Padding) -> mx.array:
    """[…, queries or 1, keys], padded keys hidden. Padded queries see all real keys: a row that sees nothing is NaN."""
    if mask is None:
        return (mx.arange(keys + padding.keys) < keys)[None]
    bools = mask.dtype == mx.bool_
    shape = [1] * (2 - mask.ndim) + list(mask.shape)
    shape[-1] = keys
    mask = mx.broadcast_to(mask, shape)
    none = [(0, 0)] * (mask.ndim - 2)
    if shape[-2] == queries:
        mask = mx.pad(mask, [*none, (0, padding.after), (0, 0)], constant_values=mx.array(True) if bools else 0)
    hidden = mx.array(False) if bools else mx.array(-float("inf"), mask.dtype)
    return mx.pad(mask, [*none, (0, 0), (0, padding.keys)], constant_values=hidden)
