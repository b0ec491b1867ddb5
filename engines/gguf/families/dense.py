"""Dense transformers: every block has attention and an MLP. A family is one import and one line."""

from __future__ import annotations

from typing import Final

from engines.gguf.families.apertus import APERTUS
from engines.gguf.families.arcee import ARCEE
from engines.gguf.families.bitnet import BITNET
from engines.gguf.families.chatglm import CHATGLM
from engines.gguf.families.cohere import COHERE2, COMMAND_R
from engines.gguf.families.deci import DECI
from engines.gguf.families.exaone4 import EXAONE4
from engines.gguf.families.family import Family
from engines.gguf.families.gemma2 import GEMMA, GEMMA2
from engines.gguf.families.gemma3 import GEMMA3
from engines.gguf.families.gemma3n import GEMMA3N
from engines.gguf.families.gemma4 import GEMMA4
from engines.gguf.families.glm4 import GLM4
from engines.gguf.families.gpt import GPT2, GPTNEOX, STARCODER
from engines.gguf.families.granite import GRANITE
from engines.gguf.families.hunyuan_dense import HUNYUAN_DENSE
from engines.gguf.families.llama import LLAMA
from engines.gguf.families.llama_kin import BAICHUAN, ERNIE4_5, EXAONE, INTERNLM2, QWEN, SEED_OSS, XVERSE
from engines.gguf.families.minicpm import MINICPM
from engines.gguf.families.minicpm3 import MINICPM3
from engines.gguf.families.mistral3 import MISTRAL3
from engines.gguf.families.nemotron import NEMOTRON
from engines.gguf.families.olmo2 import OLMO2
from engines.gguf.families.phi2 import PHI2
from engines.gguf.families.phi3 import PHI3
from engines.gguf.families.qwen2 import QWEN2
from engines.gguf.families.qwen3 import QWEN3
from engines.gguf.families.qwen_vl import QWEN2VL, QWEN3VL
from engines.gguf.families.smollm3 import SMOLLM3
from engines.gguf.families.stablelm import STABLELM
from engines.gguf.families.starcoder2 import STARCODER2

__all__ = ["FAMILIES", "REFUSED"]

FAMILIES: Final[tuple[Family, ...]] = (
    LLAMA,
    QWEN2,
    QWEN3,
    GEMMA3,
    PHI3,
    GEMMA,
    GEMMA2,
    GEMMA3N,
    GEMMA4,
    MISTRAL3,
    GRANITE,
    GLM4,
    SMOLLM3,
    EXAONE,
    EXAONE4,
    OLMO2,
    COMMAND_R,
    COHERE2,
    STARCODER2,
    STABLELM,
    PHI2,
    INTERNLM2,
    ERNIE4_5,
    SEED_OSS,
    HUNYUAN_DENSE,
    MINICPM3,
    BITNET,
    QWEN2VL,
    QWEN3VL,
    CHATGLM,
    MINICPM,
    NEMOTRON,
    DECI,
    ARCEE,
    APERTUS,
    QWEN,
    BAICHUAN,
    XVERSE,
    GPT2,
    GPTNEOX,
    STARCODER,
)

_NO_CLASS: Final = "mlx-lm has no class that computes it"
_DIFFUSION: Final = "a diffusion model is not decoded token by token"
_NOT_FITTED: Final = "its files have not been fitted to mlx-lm's class"
_READS_IMAGES: Final = "it is of use with images alone, which this version does not read"

REFUSED: Final[dict[str, str]] = {
    "bloom": _NO_CLASS,
    "chameleon": _NO_CLASS,
    "codeshell": _NO_CLASS,
    "cogvlm": _NO_CLASS,
    "deepseek2-ocr": _READS_IMAGES,
    "dream": _DIFFUSION,
    "falcon": f"{_NO_CLASS}; Falcon 3 is `llama`, Falcon-H1 `falcon-h1`",
    "gptj": _NOT_FITTED,
    "hunyuan_vl": _READS_IMAGES,
    "jais": _NO_CLASS,
    "jais2": _NO_CLASS,
    "llada": _DIFFUSION,
    "maincoder": _NO_CLASS,
    "mpt": _NO_CLASS,
    "olmo": "mlx-lm's class needs a package of OLMo's makers; OLMo 2 and 3 are `olmo2`",
    "openelm": _NOT_FITTED,
    "orion": _NO_CLASS,
    "paddleocr": _READS_IMAGES,
    "pangu-embedded": _NO_CLASS,
    "plamo": _NOT_FITTED,
    "plamo3": _NOT_FITTED,
    "plm": _NO_CLASS,
    "refact": _NO_CLASS,
    "t5": "mlx-lm has no class with an encoder beside the decoder",
}
"""Architectures of this kind that cannot be run: why, as the rest of a sentence that begins "is not supported: "."""
