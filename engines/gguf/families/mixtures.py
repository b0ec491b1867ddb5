"""Mixtures of experts, and attention through a latent. A family is one import and one line."""

from __future__ import annotations

from typing import Final

from engines.gguf.families.afmoe import AFMOE
from engines.gguf.families.bailingmoe import BAILINGMOE, BAILINGMOE2
from engines.gguf.families.deepseek import DEEPSEEK
from engines.gguf.families.deepseek2 import DEEPSEEK2, MISTRAL4
from engines.gguf.families.dots1 import DOTS1
from engines.gguf.families.ernie4_5_moe import ERNIE4_5_MOE
from engines.gguf.families.exaone_moe import EXAONE_MOE
from engines.gguf.families.family import Family
from engines.gguf.families.glm4moe import GLM4MOE
from engines.gguf.families.gpt_oss import GPT_OSS
from engines.gguf.families.granitemoe import GRANITEMOE
from engines.gguf.families.hunyuan_moe import HUNYUAN_MOE
from engines.gguf.families.llama4 import LLAMA4
from engines.gguf.families.mimo2 import MIMO2
from engines.gguf.families.minimax_m2 import MINIMAX_M2
from engines.gguf.families.olmoe import OLMOE
from engines.gguf.families.phimoe import PHIMOE
from engines.gguf.families.qwen2moe import QWEN2MOE
from engines.gguf.families.qwen3moe import QWEN3MOE
from engines.gguf.families.qwen_vl import QWEN3VLMOE
from engines.gguf.families.step35 import STEP35

__all__ = ["FAMILIES", "REFUSED"]

FAMILIES: Final[tuple[Family, ...]] = (
    QWEN2MOE,
    QWEN3MOE,
    STEP35,
    MIMO2,
    QWEN3VLMOE,
    GPT_OSS,
    DEEPSEEK,
    DEEPSEEK2,
    MISTRAL4,
    GLM4MOE,
    AFMOE,
    BAILINGMOE,
    BAILINGMOE2,
    DOTS1,
    ERNIE4_5_MOE,
    EXAONE_MOE,
    GRANITEMOE,
    HUNYUAN_MOE,
    LLAMA4,
    MINIMAX_M2,
    OLMOE,
    PHIMOE,
)

_NO_CLASS: Final = "mlx-lm has no class that computes it"
_NOT_FITTED: Final = "its files have not been fitted to mlx-lm's class"
_DIFFUSION: Final = "a diffusion model is not decoded token by token"

REFUSED: Final[dict[str, str]] = {
    "arctic": _NO_CLASS,
    "bailingmoe3": _NOT_FITTED,
    "cohere2moe": _NO_CLASS,
    "dbrx": "mlx-lm's class computes its experts one by one, and stops the device at every token for it",
    "deepseek32": f"{_NOT_FITTED}, whose attention chooses the tokens it looks at",
    "deepseek4": f"{_NOT_FITTED}, whose attention chooses the tokens it looks at",
    "glm-dsa": f"{_NOT_FITTED}, whose attention chooses the tokens it looks at",
    "grok": _NO_CLASS,
    "grovemoe": _NO_CLASS,
    "hy_v3": _NO_CLASS,
    "hy_v4": _NO_CLASS,
    "kimi-k3": _NOT_FITTED,
    "laguna": _NOT_FITTED,
    "llada-moe": _DIFFUSION,
    "minimax-01": _NO_CLASS,
    "minimax-m3": _NOT_FITTED,
    "rnd1": _DIFFUSION,
    "smallthinker": _NO_CLASS,
}
"""Architectures of this kind that cannot be run: why, as the rest of a sentence that begins "is not supported: "."""
