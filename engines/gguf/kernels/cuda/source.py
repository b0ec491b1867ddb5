"""The device source as one text, the way MLX's run-time compiler wants it."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

__all__ = ["header"]

_SHARED = '#include "scalar.h"'


@cache
def header() -> str:
    """Everything a kernel's body calls. The shared scalar code is put in place of its include: there is no search path."""
    here, shared = files(__package__), files("engines.gguf.kernels.source")
    blocks = here.joinpath("blocks.cuh").read_text(encoding="utf-8")
    scalar = shared.joinpath("scalar.h").read_text(encoding="utf-8")
    rest = (here.joinpath(name).read_text(encoding="utf-8") for name in ("product.cuh", "dequantize.cuh"))
    return "\n".join((blocks.replace(_SHARED, scalar), *rest))
