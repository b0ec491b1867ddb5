"""The C library's heap, where it is glibc's: arrays of NumPy and of MLX's CPU back end are made there. Elsewhere no-ops."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["share_one_heap", "trim_heap"]

_M_ARENA_MAX = -8  # <malloc.h>


def share_one_heap() -> None:
    """Lets all threads allocate from the main heap; to be called before there are any.

    Otherwise each gets one of its own, whose free end glibc keeps up to 64 MiB of and :func:`trim_heap` does not reach.
    """
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Gives freed memory back to the system, some 0.5 ms.

    The temporaries of products come and go between what stays, so that glibc by itself gives back little but the heap's
    end: up to 200 MiB were kept after a long prompt.
    """
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _function(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
