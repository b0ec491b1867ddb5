"""State-space models, hybrids of them with attention, and others. A family is one import and one line."""

from __future__ import annotations

from typing import Final

from engines.gguf.families.family import Family
from engines.gguf.families.qwen35 import QWEN3NEXT, QWEN35, QWEN35MOE

__all__ = ["FAMILIES", "REFUSED"]

FAMILIES: Final[tuple[Family, ...]] = (
    QWEN35,
    QWEN35MOE,
    QWEN3NEXT,
)

REFUSED: Final[dict[str, str]] = {}
"""Architectures of this kind that cannot be run: why, as the rest of a sentence that begins "is not supported: "."""
