"""Keeps NumPy's BLAS to the calling thread."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

__all__ = ["use_one_thread"]

# OpenBLAS under the names it has in NumPy's wheels.
_SETTERS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads")


def use_one_thread() -> bool:
    """Tells the OpenBLAS of NumPy's wheel to start no threads of its own. False where there is none (macOS: Accelerate).

    Its threads spin while they wait, which costs milliseconds a call as soon as another process wants the core; and the work
    is split by rows outside BLAS anyhow.
    """
    for library in sorted(Path(np.__file__).parent.with_name("numpy.libs").glob("*openblas*")):
        loaded = ctypes.CDLL(str(library))  # already mapped by NumPy: the same instance
        for name in _SETTERS:
            setter = getattr(loaded, name, None)
            if setter is not None:
                setter(1)
                return True
    return False
