"""What cases of dense decoders share: a small stock configuration, the keys for it, and names by gguf-py's map."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gguf
import numpy as np

from engines.gguf.writer import CheckpointValue
from tests.engines.gguf.families.helpers_family import VOCABULARY, Array, Weights

__all__ = [
    "CONFIG",
    "LLAMA3",
    "MORE_HEADS",
    "by_name",
    "faint_embeddings",
    "interleaved",
    "keys",
    "keys_of_layer_norms",
    "llama3_factors",
    "plus_one",
]

CONFIG: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

MORE_HEADS: tuple[dict[str, Any], dict[str, Any]] = (
    {"num_attention_heads": 16},
    {"attention.head_count": 16, "rope.dimension_count": 16},
)
"""Configuration and keys of a model of width 256 whose heads are as wide as those of ``CONFIG``."""


def llama3_factors(dims: int, base: float) -> Array:
    """What the converter makes of ``LLAMA3`` for heads of this width."""
    factors = []
    for pair in range(dims // 2):
        wavelength = 2 * math.pi * base ** (2 * pair / dims)
        smooth = min(max((64 / wavelength - 1.0) / 3.0, 0.0), 1.0)
        factors.append(1 / ((1 - smooth) / 8.0 + smooth))
    return np.array(factors, np.float32)


def faint_embeddings(name: str, random: Array) -> Array | None:
    """Else a model with a tied head repeats its input, whatever its layers say; faint biases, that do not drown them."""
    return 0.02 * random if name.endswith(("embed_tokens.weight", ".bias")) else None


def keys(config: dict[str, Any], **more: CheckpointValue | None) -> dict[str, CheckpointValue]:
    """What the converter writes for all decoders; None takes a key out. Double underscores stand for dots."""
    values: dict[str, CheckpointValue | None] = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
    }
    if "head_dim" in config:
        values |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    values |= {key.replace("__", "."): value for key, value in more.items()}
    return {key: value for key, value in values.items() if value is not None}


def keys_of_layer_norms(config: dict[str, Any], **more: CheckpointValue | None) -> dict[str, CheckpointValue]:
    """The same for models with layer norms."""
    epsilon = {"attention__layer_norm_rms_epsilon": None, "attention__layer_norm_epsilon": config["rms_norm_eps"]}
    return keys(config, **epsilon, **more)


def by_name(
    architecture: str, change: Callable[[str, Array, dict[str, Any]], Array] = lambda name, value, config: value
) -> Callable[[Weights, dict[str, Any]], Weights]:
    """Names by gguf-py's map, values as ``change`` (of name, value, configuration) makes them."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}

    def tensors(weights: Weights, config: dict[str, Any]) -> Weights:
        names = gguf.get_tensor_name_map(kinds[architecture], config["num_hidden_layers"])
        converted: Weights = {}
        for name, value in weights.items():
            renamed = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert renamed is not None, name
            converted[renamed] = change(name, value, config)
        return converted

    return tensors


def interleaved(name: str, value: Array, config: dict[str, Any]) -> Array:
    """Rows of each head of Q and K from halves (0, 1, …, d/2, d/2+1, …) to pairs (0, d/2, 1, d/2+1, …)."""
    for part, heads in ((".q_proj.", "num_attention_heads"), (".k_proj.", "num_key_value_heads")):
        if part in name:
            halves = value.reshape(config[heads], 2, -1, *value.shape[1:])
            return halves.swapaxes(1, 2).reshape(value.shape)
    return value


def plus_one(name: str, value: Array, config: dict[str, Any]) -> Array:
    """Gemma's norms with their offset."""
    return value + np.float32(1.0) if name.endswith("norm.weight") else value
