"""Mixtures of experts, and attention through a latent. A family is one import and one line."""

from __future__ import annotations

from typing import Final

from engines.gguf.families.family import Family
from engines.gguf.families.qwen3moe import QWEN3MOE

__all__ = ["FAMILIES", "REFUSED"]

FAMILIES: Final[tuple[Family, ...]] = (QWEN3MOE,)

REFUSED: Final[dict[str, str]] = {}
"""Architectures of this kind that cannot be run: why, as the rest of a sentence that begins "is not supported: "."""
