"""The device source as MLX's run-time compiler takes it: one line that includes the files of this folder, or their text.

The host pays for a kernel's text at every call, since MLX hashes it each time it dispatches the kernel: 8 µs for these files.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from engines.gguf.kernels.source import inlined

__all__ = ["digest", "included", "whole"]

_ROOT = "kernels.cuh"


def included() -> str | None:
    """A line that includes all device source from where the package lies, and the digest of what lies there: MLX keeps what
    it compiled by a kernel's name and text. None when the package is no folder, or in one that cannot be written in C."""
    root = files(__package__).joinpath(_ROOT)
    if not isinstance(root, Path) or re.search(r'["\\\n]', str(root)):
        return None
    return f'#include "{root.resolve()}"  // {digest()}\n'


@cache
def whole() -> str:
    """All device source as one text, each file in place of its include: there is no search path."""
    return inlined(__package__, _ROOT)


@cache
def digest() -> str:
    """12 characters that change with the source."""
    return hashlib.sha256(whole().encode()).hexdigest()[:12]
