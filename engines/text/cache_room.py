"""Keeps the caches of a batch to what admission projects for them: whole steps of their longest row, and no more.

mlx-lm's batch caches grow in steps from wherever they stand, keep the room of rows that have left, and hold a window and a
whole prefill chunk, recurrent ones whatever their state was cut from; a slice of an array keeps all of it in memory.
:func:`fit` gives each the room it needs, in memory of its own. Layer by layer, so that no more than one layer is held twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, BatchKVCache, BatchRotatingKVCache, CacheList

from engines.scheduling.admission import KV_STEP

__all__ = ["fit", "keep_rows"]


def fit(caches: Iterable[Any]) -> None:
    """After rows have joined, or a chunk was read. Caches of other kinds stay as they are."""
    for cache in _flat(caches):
        if isinstance(cache, ArraysCache):
            # A recurrent state: the last columns of a chunk's convolutions are a slice that would keep them all.
            cache.cache = [None if array is None else mx.contiguous(array) for array in cache.cache]
            mx.eval(cache.cache)
        elif isinstance(cache, BatchRotatingKVCache):
            _fit_window(cache)
        elif isinstance(cache, BatchKVCache) and cache.keys is not None:
            _move(cache, 0, cache._idx, _steps(cache._idx))


def keep_rows(caches: Iterable[Any], rows: Sequence[int]) -> None:
    """Their ``filter``, and the room of the rows that left is free when this returns."""
    for cache in _flat(caches):
        length = getattr(cache, "_idx", None)
        cache.filter(rows)
        mx.eval(cache.state)
        if isinstance(cache, BatchKVCache) and cache.keys is not None and cache._idx != length:
            _copy(cache, 0, cache._idx, _steps(cache._idx))  # a slice now, of all that was


def _flat(caches: Iterable[Any]) -> Iterator[Any]:
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from _flat(cache.caches)
        else:
            yield cache


def _fit_window(cache: Any) -> None:
    if cache.keys is None or cache.rotated:
        return
    beyond = max(0, cache._idx - cache.max_size)
    if beyond:
        # What stands before the window is dropped by the next update; its mask counts from the window's start.
        cache.left_padding = cache.left_padding - beyond
        cache._idx = cache.max_size
    _move(cache, beyond, cache._idx, min(_steps(cache._idx), cache.max_size))


def _steps(tokens: int) -> int:
    return max(1, -(-tokens // KV_STEP)) * KV_STEP


def _move(cache: Any, start: int, used: int, room: int) -> None:
    """Copies ``used`` tokens from ``start`` on into arrays of ``room``, unless they have that many already."""
    if start > 0 or cache.keys.shape[2] != room:
        _copy(cache, start, used, room)


def _copy(cache: Any, start: int, used: int, room: int) -> None:
    for name in ("keys", "values"):
        held = getattr(cache, name)
        fresh = mx.zeros((*held.shape[:2], room, held.shape[3]), dtype=held.dtype)
        fresh[..., :used, :] = held[..., start : start + used, :]
        setattr(cache, name, fresh)
    mx.eval(cache.keys, cache.values)
