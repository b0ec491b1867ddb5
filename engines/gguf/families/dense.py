"""Dense transformers: every block has attention and an MLP. A family is one import and one line."""

from __future__ import annotations

from typing import Final

from engines.gguf.families.family import Family
from engines.gguf.families.gemma3 import GEMMA3
from engines.gguf.families.llama import LLAMA
from engines.gguf.families.phi3 import PHI3
from engines.gguf.families.qwen2 import QWEN2
from engines.gguf.families.qwen3 import QWEN3

__all__ = ["FAMILIES", "REFUSED"]

FAMILIES: Final[tuple[Family, ...]] = (
    LLAMA,
    QWEN2,
    QWEN3,
    GEMMA3,
    PHI3,
)

REFUSED: Final[dict[str, str]] = {}
"""Architectures of this kind that cannot be run: why, as the rest of a sentence that begins "is not supported: "."""
