"""Keeps the caches of a batch to what admission projects for them: whole steps of their longest row, and no more.

mlx-lm's batch caches grow in steps from wherever they stand, keep the room of rows that have left, and hold a window and a
whole prefill chunk, recurrent ones whatever their state was cut from; a slice of an array keeps all of it in memory.
:func:`fit` gives each the room it needs, in memory of its own.

No more than :func:`layers_at_once` layers are held twice: each wait for a GPU costs as much as copying a layer, so there several
are copied before they are waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, BatchKVCache, BatchRotatingKVCache, CacheList

from engines.scheduling.admission import KV_STEP

__all__ = ["extended", "fit", "keep_rows", "layers_at_once", "share"]

_GPU_LAYERS = 4


def layers_at_once() -> int:
    """Layers that are held twice while rows join or leave."""
    return 1 if mx.default_device().type == mx.DeviceType.cpu else _GPU_LAYERS


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


def extended(caches: Iterable[Any]) -> None:
    """After mlx-lm's ``extend``: what each was made from is let go, and each has the room it needs."""
    flat = [*_flat(caches)]
    _settle(flat, padded=True)
    fit(flat)
    share(flat)


def keep_rows(caches: Iterable[Any], rows: Sequence[int]) -> None:
    """Their ``filter``, and the room of the rows that left is free when this returns."""
    flat = [*_flat(caches)]
    wholes = [cache for cache in flat if type(cache) is BatchKVCache and cache.keys is not None]
    kept = mx.array([*rows])
    # Every layer of a batch has the same padding, and asking for it waits for the device: once is enough.
    shift = min(wholes[0].left_padding[kept].tolist()) if wholes else 0
    runs = _runs(rows)
    padded = [_keep(cache, kept, runs, shift) for cache in wholes]
    _settle(wholes, padded=any(padded))
    for cache in flat:
        if not (type(cache) is BatchKVCache and cache.keys is not None):
            cache.filter(rows)
            mx.eval(cache.state)
    share(flat)


def _keep(cache: Any, kept: mx.array, runs: Sequence[tuple[int, int]], shift: int) -> bool:
    """Whether what is kept was made by way of other arrays of its size."""
    used = cache._idx - shift
    room = _steps(used)
    whole = shift == 0 and room == cache.keys.shape[2]
    # On a CPU MLX takes rows of a slice apart number by number, and copies runs of them whole.
    in_runs = not whole and mx.default_device().type == mx.DeviceType.cpu
    padded: bool = not in_runs and shift + room > cache.keys.shape[2]
    for name in ("keys", "values"):
        held = getattr(cache, name)
        some = held[:, :, shift : shift + room]
        fresh = _in_runs(some, runs, room) if in_runs else mx.take(some, kept, axis=0)
        if padded:
            fresh = mx.pad(fresh, [(0, 0), (0, 0), (0, room - fresh.shape[2]), (0, 0)])
        setattr(cache, name, fresh)
    cache.offset = cache.offset[kept]
    cache.left_padding = cache.left_padding[kept] - shift
    cache._idx = used
    return padded


def _in_runs(some: mx.array, runs: Sequence[tuple[int, int]], room: int) -> mx.array:
    """These rows, with zeros behind where they have fewer than ``room`` tokens."""
    count = sum(last - first for first, last in runs)
    fresh = mx.zeros((count, some.shape[1], room, some.shape[3]), dtype=some.dtype)
    at = 0
    for first, last in runs:
        fresh[at : at + last - first, :, : some.shape[2]] = some[first:last]
        at += last - first
    return fresh


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Rows, ascending, as [first, last)."""
    runs: list[tuple[int, int]] = []
    for row in rows:
        if runs and runs[-1][1] == row:
            runs[-1] = runs[-1][0], row + 1
        else:
            runs.append((row, row + 1))
    return runs


def _settle(caches: Sequence[Any], *, padded: bool) -> None:
    """Computes what the caches hold, so many layers at a time that no more are held twice.

    ``padded``: arrays are made by way of others of their size, so keys are computed before values.
    """
    step = layers_at_once()
    for at in range(0, len(caches), step):
        some = caches[at : at + step]
        if padded:
            mx.eval([getattr(cache, "keys", None) for cache in some])
        mx.eval([cache.state for cache in some])


def share(caches: Iterable[Any]) -> None:
    """Layers that hold the same offsets and padding hold the same arrays: what a step makes of them is computed once."""
    first = None
    for cache in _flat(caches):
        if type(cache) is not BatchKVCache:
            continue
        if first is None:
            first = cache
        elif cache._idx == first._idx:
            cache.offset, cache.left_padding = first.offset, first.left_padding


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
