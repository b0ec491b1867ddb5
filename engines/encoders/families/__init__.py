"""The architectures, one module each: what a checkpoint's metadata mean, and which tensor is what, in both formats.

``GGUF`` maps ``general.architecture``, ``HF`` maps ``model_type`` to what makes the blueprint. A new architecture is one module
and its entries in these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from engines.encoders.blueprint import Blueprint
from engines.encoders.families import bert, gemma3, jina_bert_v2, modern_bert, nomic_bert, qwen3
from engines.encoders.hf_config import HfConfig
from engines.errors import UnsupportedModel
from engines.gguf.config import Hyperparameters
from engines.header import GgufHeader, SafetensorsHeader

__all__ = ["GGUF", "HF", "FromGguf", "FromHf", "blueprint_of"]

FromGguf = Callable[[Hyperparameters, GgufHeader], Blueprint]
FromHf = Callable[[HfConfig, SafetensorsHeader], Blueprint]

GGUF: Final[Mapping[str, FromGguf]] = MappingProxyType(
    {
        "bert": bert.from_gguf,
        "nomic-bert": nomic_bert.from_gguf,
        "nomic-bert-moe": nomic_bert.from_gguf,
        "modern-bert": modern_bert.from_gguf,
        "jina-bert-v2": jina_bert_v2.from_gguf,
        "qwen3": qwen3.from_gguf,
        "gemma-embedding": gemma3.from_gguf,
    }
)

HF: Final[Mapping[str, FromHf]] = MappingProxyType(
    {
        "bert": bert.from_hf,
        "roberta": bert.from_hf,
        "xlm-roberta": bert.from_hf,
        "camembert": bert.from_hf,
        "nomic_bert": nomic_bert.from_hf,
        "modernbert": modern_bert.from_hf,
        "qwen3": qwen3.from_hf,
        "gemma3_text": gemma3.from_hf,
    }
)

_READ_BY_HEADS: Final = ("pooling_type", "classifier.output_labels", "classifier.pooling_type")


def blueprint_of(header: GgufHeader | SafetensorsHeader, config: HfConfig | None) -> Blueprint:
    """Of a GGUF file, or of safetensors with their ``config.json``.

    UnsupportedModel that names an architecture, a key or a value which is not supported.
    """
    if isinstance(header, GgufHeader):
        architecture = header.text("general.architecture") or ""
        if architecture not in GGUF:
            known = ", ".join(GGUF)
            raise UnsupportedModel(
                f"{header.path}: the architecture {architecture!r} is not supported; these are: {known}"
            )
        keys = Hyperparameters(header.path, architecture, header.metadata)
        blueprint = GGUF[architecture](keys, header)
        keys.leave(*_READ_BY_HEADS)
        keys.finish()
        return blueprint
    assert config is not None
    model_type = config.text("model_type")
    if model_type not in HF:
        raise UnsupportedModel(f"{config.path}: model_type {model_type!r} is not supported; these are: {', '.join(HF)}")
    for quantised in ("quantization_config", "quantization"):
        if config.has(quantised):
            raise UnsupportedModel(
                f"{config.path}: {quantised} is set; float checkpoints are supported, and GGUF files"
            )
    return HF[model_type](config, header)
