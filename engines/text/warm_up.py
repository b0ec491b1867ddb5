"""Runs a model once in each of the shapes that requests come in, while it loads.

A GPU's kernels are compiled when they are first used, and every process has to do it anew: the first prompt of an 8B model and its
first steps took half a minute, in which the device thread answers nothing, not even a cancel. Here the load takes that time, and
says how far it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engines.interface import ReportProgress

__all__ = ["ROWS", "warm_up"]

ROWS = (1, 8, 16, 32, 64)
"""Up to so many rows of activations take the same kernels."""

_PROMPT = 128  # tokens that take the kernels for any longer prompt


def warm_up(model: Any, width: int, report: ReportProgress) -> None:
    """Prompts, short and long, and steps of as many rows as decode together; on the device thread. ``report`` is told the fraction
    that is done."""
    passes = list(_shapes(width))
    for done, (rows, tokens) in enumerate(passes):
        _run(model, rows, tokens)
        report((done + 1) / len(passes))
    mx.clear_cache()


def _shapes(width: int) -> Iterator[tuple[int, int]]:
    """Rows and tokens a row."""
    yield 1, _PROMPT
    yield 1, ROWS[1]
    for fewer, most in zip((0, *ROWS), ROWS, strict=False):
        if width > fewer:
            yield min(width, most), 1


def _run(model: Any, rows: int, tokens: int) -> None:
    caches: Sequence[Any] = make_prompt_cache(model)
    if tokens == 1:  # a step, in the caches that decoding uses
        model(mx.zeros((1, 2), mx.uint32), cache=caches)
        if all(hasattr(cache, "merge") for cache in caches):
            caches = [cache.merge([cache] * rows) for cache in caches]
    mx.eval(model(mx.zeros((rows, tokens), mx.uint32), cache=caches), [cache.state for cache in caches])
