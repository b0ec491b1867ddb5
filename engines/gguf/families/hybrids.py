"""State-space models, hybrids of them with attention, and others. A family is one import and one line."""

from __future__ import annotations

from typing import Final

from engines.gguf.families.falcon_h1 import FALCON_H1
from engines.gguf.families.family import Family
from engines.gguf.families.granitehybrid import GRANITEHYBRID
from engines.gguf.families.kimi_linear import KIMI_LINEAR
from engines.gguf.families.lfm2 import LFM2, LFM2MOE
from engines.gguf.families.mamba import JAMBA, MAMBA
from engines.gguf.families.mamba2 import MAMBA2
from engines.gguf.families.nemotron_h import NEMOTRON_H, NEMOTRON_H_MOE
from engines.gguf.families.qwen35 import QWEN3NEXT, QWEN35, QWEN35MOE

__all__ = ["FAMILIES", "REFUSED"]

FAMILIES: Final[tuple[Family, ...]] = (
    QWEN35,
    QWEN35MOE,
    QWEN3NEXT,
    LFM2,
    LFM2MOE,
    GRANITEHYBRID,
    NEMOTRON_H,
    NEMOTRON_H_MOE,
    FALCON_H1,
    MAMBA2,
    MAMBA,
    JAMBA,
    KIMI_LINEAR,
)

_NO_CLASS: Final = "mlx-lm has no class that computes it"

REFUSED: Final[dict[str, str]] = {
    "arwkv7": _NO_CLASS,
    "plamo2": "its files have not been fitted to mlx-lm's class, nor has a tokenizer of its kind been made",
    "rwkv6": _NO_CLASS,
    "rwkv6qwen2": _NO_CLASS,
    "rwkv7": "the token shifts and low-rank matrices of its files have not been fitted to mlx-lm's class",
}
"""Architectures of this kind that cannot be run: why, as the rest of a sentence that begins "is not supported: "."""
