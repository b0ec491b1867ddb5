"""The families that were there before the harness, in it: Llama, Qwen 2 and 3, Gemma 3 and Phi 3, with their rotary scalings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.engines.gguf.families.helpers_family import Array, Case, checks
from tests.engines.gguf.families.helpers_moe_names import (
    DECODER,
    GATED,
    QK_NORMS,
    interleaved,
    moe_config,
    moe_metadata,
    renamed,
)

LLAMA = moe_config("llama")
LLAMA_KEYS = moe_metadata(LLAMA, {"vocab_size": 96, "rope.dimension_count": 16})
LLAMA_TENSORS = renamed(
    DECODER | GATED, {"attn_q": interleaved("num_attention_heads"), "attn_k": interleaved("num_key_value_heads")}
)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LLAMA_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def llama3_factors(dims: int, base: float) -> Array:
    factors = []
    for i in range(0, dims, 2):
        wavelength = 2 * math.pi * base ** (i / dims)
        smooth = (64 / wavelength - 1) / (4 - 1)
        inside = 1 / ((1 - smooth) / 8 + smooth)
        factors.append(1.0 if wavelength < 64 / 4 else 8.0 if wavelength > 64 else inside)
    return np.array(factors, np.float32)


QWEN2 = moe_config("qwen2", tie_word_embeddings=True)
QWEN3 = moe_config("qwen3", head_dim=32)
GEMMA3 = moe_config(
    "gemma3_text",
    num_key_value_heads=1,
    head_dim=32,
    rms_norm_eps=1e-6,
    query_pre_attn_scalar=32,
    rope_theta=1000000.0,
    rope_local_base_freq=10000.0,
    sliding_window=8,
    sliding_window_pattern=3,
    tie_word_embeddings=True,
)
GEMMA3_NAMES = (
    DECODER
    | GATED
    | QK_NORMS
    | {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
)
GEMMA3_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm")
PHI3 = moe_config("phi3", partial_rotary_factor=0.75)
PHI3_NAMES = DECODER | {
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def plus_one(value: Array, config: dict[str, Any]) -> Array:
    return value + 1


def gemma3(weights: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    converted = renamed(GEMMA3_NAMES, dict.fromkeys(GEMMA3_NORMS, plus_one))(weights, config)
    return converted | {"output_norm.weight": converted["output_norm.weight"] + 1}


def around_nothing(name: str, random: Array) -> Array | None:
    """Gemma adds one to its norms' weights, and scales its embedding up by eight."""
    if name.endswith("norm.weight"):
        return random * np.float32(0.2)
    return random / np.float32(64) if "embed_tokens" in name else None


def tie(model: Any) -> None:
    model.sanitize({})


CASES = [
    Case("llama", "llama", LLAMA, LLAMA_KEYS, LLAMA_TENSORS, light=True),
    Case(
        "llama-llama3",
        "llama",
        LLAMA | {"rope_scaling": LLAMA3},
        LLAMA_KEYS,
        LLAMA_TENSORS,
        extra={"rope_freqs.weight": llama3_factors(16, 10000.0)},
        light=True,
    ),
    Case(
        "llama-yarn",
        "llama",
        LLAMA | {"rope_scaling": LLAMA_YARN},
        LLAMA_KEYS
        | {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
        LLAMA_TENSORS,
        light=True,
    ),
    Case("qwen2", "qwen2", QWEN2, moe_metadata(QWEN2, {}), renamed(DECODER | GATED), light=True),
    Case(
        "qwen3",
        "qwen3",
        QWEN3,
        moe_metadata(QWEN3, {"attention.key_length": 32, "attention.value_length": 32}),
        renamed(DECODER | GATED | QK_NORMS),
        light=True,
    ),
    Case(
        "gemma3",
        "gemma3",
        GEMMA3,
        moe_metadata(
            GEMMA3,
            {
                "attention.key_length": 32,
                "attention.value_length": 32,
                "attention.sliding_window": 8,
                "attention.sliding_window_pattern": 3,
            },
        ),
        gemma3,
        initial=around_nothing,
        prepare=tie,
        light=True,
    ),
    Case(
        "phi3",
        "phi3",
        PHI3,
        moe_metadata(
            PHI3,
            {
                "rope.dimension_count": 12,
                "rope.scaling.original_context_length": 256,
                "attention.sliding_window": 0,
            },
        ),
        renamed(PHI3_NAMES),
        light=True,
    ),
]

# The rest is tested, with every quant type, in tests/engines/gguf/test_families.py, test_model.py and test_model_batches.py.
test_logits, *_ = checks(CASES)
