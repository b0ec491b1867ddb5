"""The C library's heap, where it is glibc's: arrays of NumPy and of MLX's CPU back end are made there. Elsewhere no-ops."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["set_up_heap", "trim_heap"]

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGEST_ON_HEAP = 32 * 1024**2  # the most that glibc allows
_KEPT_AT_THE_END = 1024**3


def set_up_heap() -> None:
    """Settings for a process that makes and drops large arrays all the time and trims by itself; before any other thread.

    All threads allocate from one heap: otherwise each has its own, whose free end glibc keeps up to 64 MiB of and
    :func:`trim_heap` does not reach. And glibc gives back nothing by itself: with its own limits the heap's end goes back
    and forth within each product, which costs a quarter of the time of decoding.
    """
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_AT_THE_END)


def trim_heap() -> None:
    """Gives freed memory back to the system, some 0.5 ms.

    The temporaries of products leave holes between what stays, and glibc by itself gives back no more than the heap's end:
    after a long prompt up to 200 MiB were kept.
    """
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _function(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
