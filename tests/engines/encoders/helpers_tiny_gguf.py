"""The tiny encoders as the GGUF files that llama.cpp's converter would make of them.

Tensors are named by gguf-py's own map; what the converter changes besides (joined matrices taken apart, positions cut off, norms
plus one) is written out here, so that a mistake of ``engines/encoders/families`` is not mirrored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from engines.gguf.writer import CheckpointValue, write_checkpoint
from tests.engines.encoders.helpers_tiny_encoders import (
    CONFIGS,
    FEED_FORWARD,
    HEADS,
    LAYERS,
    SPECIALS,
    VOCABULARY,
    WIDTH,
    tensors_of,
)

__all__ = ["ARCHITECTURES", "gguf_tensors", "tokenizer_metadata", "write_tiny_gguf"]

ARCHITECTURES = {
    "bert": "bert",
    "xlm-roberta": "bert",
    "modernbert": "modern-bert",
    "nomic_bert": "nomic-bert",
    "qwen3": "qwen3",
    "gemma3_text": "gemma-embedding",
    "jina": "jina-bert-v2",
}


def write_tiny_gguf(
    path: Path,
    family: str,
    metadata: Mapping[str, CheckpointValue] | None = None,
    *,
    classifies: bool = False,
    extra: Mapping[str, NDArray[np.float32]] | None = None,
) -> Path:
    """One F32 file."""
    architecture = ARCHITECTURES[family]
    keys = {f"{architecture}.{key}": value for key, value in _metadata(family).items()}
    tensors = gguf_tensors(
        architecture, family, tensors_of(family, classifies=classifies), LAYERS, classifies=classifies
    ) | dict(extra or {})
    if classifies:
        keys[f"{architecture}.pooling_type"] = 4
    return write_checkpoint(
        path,
        architecture,
        {"general.name": f"tiny {family}", **keys, **(metadata or {})},
        {name: ("F32", data) for name, data in tensors.items()},
        tokenizer_metadata(),
    )


def gguf_tensors(
    architecture: str, family: str, tensors: Mapping[str, NDArray[np.float32]], layers: int, *, classifies: bool = False
) -> dict[str, NDArray[np.float32]]:
    """The checkpoint's tensors under their GGUF names."""
    kind = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, layers)
    written: dict[str, NDArray[np.float32]] = {}
    for name, data in tensors.items():
        for source, part in _converted(family, name, data, classifies):
            # Of Jina's the map knows one matrix only, where rerankers have two.
            source = source.replace("classifier.out_proj", "cls.output") if family == "jina" else source
            target = source if source.startswith("cls.") else names.get_name(source, try_suffixes=(".weight", ".bias"))
            assert target is not None, source
            written[target] = np.ascontiguousarray(part, np.float32)
    return written


def _converted(
    family: str, name: str, data: NDArray[np.float32], classifies: bool
) -> list[tuple[str, NDArray[np.float32]]]:
    """A tensor under the name by which gguf-py knows it, as the converter writes it."""
    for prefix in ("bert.", "roberta.", "nomic_bert.", "model."):
        name = name.removeprefix(prefix)
    if name.endswith("position_ids") or (name.startswith("pooler.") and not classifies):
        return []
    name = name.replace("pooler.dense", "classifier.dense")
    if family == "xlm-roberta" and name == "embeddings.position_embeddings.weight":
        return [(name, data[CONFIGS[family]["pad_token_id"] + 1 :])]
    if family != "xlm-roberta" and name in ("classifier.weight", "classifier.bias"):
        return [(name.replace("classifier.", "classifier.out_proj."), data)]
    if family == "gemma3_text" and "norm" in name:
        data = data + 1.0
    if family == "jina" and "mlp.gated_layers" in name:
        first, second = np.split(data, 2)
        return [
            (name.replace("gated_layers", "gated_layers_w"), first),
            (name.replace("gated_layers", "gated_layers_v"), second),
        ]
    if family in ("qwen3", "gemma3_text") and not name.startswith("score"):
        name = f"model.{name}"
    return [(name, data)]


def _metadata(family: str) -> dict[str, CheckpointValue]:
    config = CONFIGS[family]
    keys: dict[str, CheckpointValue] = {
        "block_count": LAYERS,
        "embedding_length": WIDTH,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "context_length": config["max_position_embeddings"] - (2 if family == "xlm-roberta" else 0),
        "pooling_type": 3 if family == "qwen3" else 1,
    }
    if "layer_norm_eps" in config or "norm_eps" in config:
        keys["attention.layer_norm_epsilon"] = config.get("layer_norm_eps") or config["norm_eps"]
        keys["attention.causal"] = False
    else:
        keys["attention.layer_norm_rms_epsilon"] = config["rms_norm_eps"]
        keys["attention.key_length"] = keys["attention.value_length"] = config["head_dim"]
        keys["attention.head_count_kv"] = config["num_key_value_heads"]
        keys["rope.freq_base"] = config["rope_theta"]
    match family:
        case "modernbert":
            keys |= {"rope.freq_base": 160000.0, "rope.freq_base_swa": 10000.0, "attention.sliding_window": 8}
            keys |= {"attention.sliding_window_pattern": 3, "attention.head_count_kv": HEADS}
        case "nomic_bert":
            keys["rope.freq_base"] = 1000.0
        case "gemma3_text":
            keys |= {"attention.sliding_window": 8, "attention.sliding_window_pattern": 2}
    return keys


def tokenizer_metadata(words: tuple[str, ...] | None = None) -> dict[str, Any]:
    """WordPiece, with as many pieces as the tiny models have rows."""
    pieces = [*SPECIALS, *(words or tuple(f"▁w{id}" for id in range(len(SPECIALS), VOCABULARY)))]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3] * len(SPECIALS) + [1] * (len(pieces) - len(SPECIALS)),
        "tokenizer.ggml.bos_token_id": SPECIALS.index("[CLS]"),
        "tokenizer.ggml.eos_token_id": SPECIALS.index("[SEP]"),
        "tokenizer.ggml.seperator_token_id": SPECIALS.index("[SEP]"),
        "tokenizer.ggml.unknown_token_id": SPECIALS.index("[UNK]"),
        "tokenizer.ggml.padding_token_id": SPECIALS.index("[PAD]"),
    }
