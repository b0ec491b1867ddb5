"""Mixtures of experts, and attention through a latent. A family is one import and one line."""

from __future__ import annotations

from typing import Final

from engines.gguf.families.deepseek2 import DEEPSEEK2
from engines.gguf.families.family import Family
from engines.gguf.families.glm4moe import GLM4MOE
from engines.gguf.families.gpt_oss import GPT_OSS
from engines.gguf.families.qwen2moe import QWEN2MOE
from engines.gguf.families.qwen3moe import QWEN3MOE

__all__ = ["FAMILIES", "REFUSED"]

FAMILIES: Final[tuple[Family, ...]] = (
    QWEN2MOE,
    QWEN3MOE,
    GPT_OSS,
    DEEPSEEK2,
    GLM4MOE,
)

REFUSED: Final[dict[str, str]] = {}
"""Architectures of this kind that cannot be run: why, as the rest of a sentence that begins "is not supported: "."""
