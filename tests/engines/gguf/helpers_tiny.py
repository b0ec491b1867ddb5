"""Tiny random models of every family: as stock mlx-lm models, and as the GGUF checkpoints llama.cpp would make of them.

The conventions of llama.cpp's converter are written out here on their own (names by gguf-py's map), so that a mistake in
``engines/gguf/families`` is not mirrored: rows of Q and K interleaved for ``llama``, Gemma's norms stored plus one, Phi's
fused projections kept, llama3 rope as a tensor of frequency factors.

``tiny_gguf(tmp_path)`` is a whole small model with tokenizer and template, for tests of anything that loads one.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from numpy.typing import NDArray

from engines.gguf.quants import QuantType, quant_type
from engines.gguf.writer import CheckpointTensor, CheckpointValue, write_checkpoint
from tests.engines.gguf.helpers_blocks import HALVES, random_blocks
from tests.engines.gguf.helpers_vocabularies import bpe_vocabulary, spm_vocabulary

__all__ = ["FAMILIES", "TinyModel", "apart", "tiny_gguf", "tiny_model"]

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3", "phi3")

_VOCABULARY = 352
_BASE: dict[str, Any] = {
    "hidden_size": 256,  # whole K-quant blocks
    "num_hidden_layers": 3,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _BASE | {"model_type": "llama", "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 128},
    "qwen2": _BASE | {"model_type": "qwen2", "rope_theta": 1000000.0},
    "qwen3": _BASE | {"model_type": "qwen3", "head_dim": 128, "tie_word_embeddings": False},
    "gemma3": _BASE
    | {
        "model_type": "gemma3_text",
        "num_key_value_heads": 1,
        "head_dim": 64,
        "query_pre_attn_scalar": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 8,
        "sliding_window_pattern": 3,
    },
    "phi3": _BASE | {"model_type": "phi3", "tie_word_embeddings": False, "partial_rotary_factor": 0.75},
}

# Of a block's offset factor to its scale: minus the average code, where the type adds offsets, plus where it subtracts them.
_OFFSET_RATIO = {"Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5, "Q4_1": -7.5, "Q5_1": -15.5}


@dataclass(frozen=True)
class TinyModel:
    """A stock model and what it takes to write it as GGUF.

    ``stock`` holds float32 weights (of quantised types: the exactly dequantised ones); ``metadata`` and ``tensors`` are
    the checkpoint in llama.cpp's conventions.
    """

    family: str
    config: dict[str, Any]
    stock: Any  # an mlx.nn.Module, whose methods are untyped
    metadata: dict[str, CheckpointValue]
    tensors: dict[str, CheckpointTensor]
    tokenizer: dict[str, CheckpointValue] = field(default_factory=dict)

    def write(
        self,
        path: Path,
        *,
        metadata: Mapping[str, CheckpointValue | None] | None = None,
        tensors: Mapping[str, CheckpointTensor | None] | None = None,
    ) -> Path:
        """Writes the checkpoint, with metadata and tensors added or replaced; None takes one out."""
        values = {**self.metadata, **(metadata or {})}
        arrays = {**self.tensors, **(tensors or {})}
        return write_checkpoint(
            path,
            self.family,
            {key: value for key, value in values.items() if value is not None},
            {name: tensor for name, tensor in arrays.items() if tensor is not None},
            self.tokenizer,
        )


def apart(first: mx.array, second: mx.array) -> float:
    """The largest absolute difference between two arrays."""
    return float(np.abs(np.array(first) - np.array(second)).max())


def tiny_gguf(tmp_dir: Path, family: str = "llama", quant: str = "Q4_K", seed: int = 0) -> Path:
    """Writes a tiny real checkpoint of this family with every matrix in ``quant``; its file."""
    return tiny_model(family, quant=quant, seed=seed).write(tmp_dir / f"tiny-{family}-{quant}-{seed}.gguf")


def tiny_model(
    family: str, *, quant: str = "F32", embedding_quant: str | None = None, seed: int = 0, **overrides: Any
) -> TinyModel:
    """A random model of this family; ``overrides`` are keys of the stock configuration."""
    config = _CONFIGS[family] | overrides
    stock = _stock_model(config)
    weights, tensors = _random_weights(family, config, stock, quant, embedding_quant or quant, seed)
    stock.update(tree_unflatten([(name, mx.array(value)) for name, value in weights.items()]))
    mx.eval(stock.parameters())
    stock.eval()
    for name, values in _rope_tensors(config).items():
        tensors[name] = ("F32", values)
    pre = {"llama": "llama-bpe", "qwen2": "qwen2", "qwen3": "qwen2"}.get(family)
    tokenizer = bpe_vocabulary(_VOCABULARY, pre) if pre else spm_vocabulary(_VOCABULARY)
    return TinyModel(family, config, stock, _metadata(family, config), tensors, tokenizer)


def _stock_model(config: dict[str, Any]) -> Any:
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    if config["model_type"] == "gemma3_text" and config["tie_word_embeddings"]:
        model.sanitize({})  # the stock class ties its head only here
    return model


def _random_weights(
    family: str, config: dict[str, Any], stock: Any, quant: str, embedding_quant: str, seed: int
) -> tuple[dict[str, NDArray[np.float32]], dict[str, CheckpointTensor]]:
    """Stock weights by their mlx-lm names, and the same as GGUF tensors."""
    architecture = {"gemma3": gguf.MODEL_ARCH.GEMMA3}.get(family) or gguf.MODEL_ARCH[family.upper()]
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    generator = np.random.default_rng(seed)
    weights: dict[str, NDArray[np.float32]] = {}
    tensors: dict[str, CheckpointTensor] = {}
    parameters: Any = tree_flatten(stock.parameters())
    for index, (name, parameter) in enumerate(parameters):
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        if len(parameter.shape) == 1:
            is_norm = name.endswith("norm.weight")
            centre = 0.0 if family == "gemma3" or not is_norm else 1.0
            values = (centre + 0.2 * generator.standard_normal(parameter.shape)).astype(np.float32)
            weights[name] = values
            tensors[gguf_name] = ("F32", _converted(family, config, name, values))
            continue
        rows, columns = parameter.shape
        kind = quant_type(embedding_quant if "embed_tokens" in name else quant)
        # Logits of a spread of about 1, whether the head is tied or not.
        untied = "embed_tokens" in name and not config["tie_word_embeddings"]
        scale = 1.0 if untied else columns**-0.5
        if family == "gemma3" and "embed_tokens" in name:
            scale /= 16  # scaled up by 16 on the way in, they would drown the layers and each token predict itself
        blocks = _centred(kind, random_blocks(kind, rows, columns, seed=1000 * seed + index, scale=scale))
        weights[name] = _dequantized(kind.name, blocks)
        data = weights[name] if kind.name == "F32" else blocks
        tensors[gguf_name] = (kind.name, _converted(family, config, name, data))
    return weights, tensors


def _centred(kind: QuantType, blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The blocks with their offsets such that weights are about 0 on average.

    With both factors of a block drawn at random, its offset outweighs its codes: every matrix is then nearly of rank one,
    and every prompt gets the same answer.
    """
    if kind.name in _OFFSET_RATIO:
        first, second = HALVES[kind.name]
        each = blocks.reshape(-1, kind.block_bytes)
        factor = np.ascontiguousarray(each[:, first : first + 2]).view(np.float16)
        each[:, second : second + 2] = (factor * np.float16(_OFFSET_RATIO[kind.name])).view(np.uint8)
    return blocks


def _dequantized(quant: str, blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """gguf-py's reading of the blocks, which is independent of ours."""
    if quant == "F32":
        return blocks.view(np.float32)
    values: NDArray[np.float32] = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[quant])
    return values


def _converted(family: str, config: dict[str, Any], name: str, data: Any) -> Any:
    """What llama.cpp's converter makes of one tensor; rows may be weights or bytes of blocks."""
    if family == "gemma3" and name.endswith("norm.weight"):
        return data + np.float32(1.0)
    if family == "llama" and ".q_proj." in name:
        return _interleaved(data, config["num_attention_heads"])
    if family == "llama" and ".k_proj." in name:
        return _interleaved(data, config["num_key_value_heads"])
    return data


def _interleaved(data: Any, heads: int) -> Any:
    """Rows of each head from halves (0, 1, …, d/2, d/2+1, …) to pairs (0, d/2, 1, d/2+1, …)."""
    halves = data.reshape(heads, 2, data.shape[0] // heads // 2, *data.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(data.shape)


def _rope_tensors(config: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Frequency factors as the converter writes them, from the stock ``rope_scaling``."""
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind == "longrope":
        return {
            "rope_factors_long.weight": np.array(scaling["long_factor"], np.float32),
            "rope_factors_short.weight": np.array(scaling["short_factor"], np.float32),
        }
    if kind != "llama3":
        return {}
    dims, original = config["head_dim"], scaling["original_max_position_embeddings"]
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    factors = []
    for i in range(0, dims, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / dims)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return {"rope_freqs.weight": np.array(factors, np.float32)}


def _metadata(family: str, config: dict[str, Any]) -> dict[str, CheckpointValue]:
    """The keys llama.cpp's converter writes for this configuration."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    values: dict[str, CheckpointValue] = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
    }
    if "head_dim" in config:
        values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if family == "llama":
        values |= {"vocab_size": config["vocab_size"], "rope.dimension_count": head_dim}
    if family == "phi3":
        values["rope.dimension_count"] = int(config.get("partial_rotary_factor", 1.0) * head_dim)
        original = config.get("original_max_position_embeddings", config["max_position_embeddings"])
        values |= {"rope.scaling.original_context_length": original, "attention.sliding_window": 0}
    if family == "gemma3":
        values["attention.sliding_window"] = config["sliding_window"]
        if config["rope_local_base_freq"] != 10000.0:
            values["rope.freq_base_swa"] = float(config["rope_local_base_freq"])
        if config["sliding_window_pattern"] != 6:
            values["attention.sliding_window_pattern"] = config["sliding_window_pattern"]
    values |= _scaling_metadata(config)
    return {"general.name": f"tiny {family}", **{f"{family}.{key}": value for key, value in values.items()}}


def _scaling_metadata(config: dict[str, Any]) -> dict[str, CheckpointValue]:
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind in ("linear", "yarn"):
        values: dict[str, CheckpointValue] = {
            "rope.scaling.type": kind,
            "rope.scaling.factor": float(scaling["factor"]),
        }
        if kind == "yarn":
            values["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
        return values
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        ratio = config["max_position_embeddings"] / original
        return {"rope.scaling.attn_factor": math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0}
    return {}
