"""chatglm."""

from __future__ import annotations

from typing import Any

import numpy as np
from mlx.nn.layers.positional_encoding import RoPE

from tests.engines.gguf.families.helpers_dense import CONFIG, MORE_HEADS, keys
from tests.engines.gguf.families.helpers_family import Case, Weights, Wide, checks

CHATGLM: dict[str, Any] = CONFIG | {
    "model_type": "glm",
    "head_dim": 16,
    "attention_bias": True,
    "tie_word_embeddings": False,
}
NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def half_rotary(model: Any) -> None:
    """The stock class rotates whole heads; the published models half of each."""
    for layer in model.layers:
        layer.self_attn.rope = RoPE(8, traditional=True, base=10000.0)


def fused(weights: Weights, config: dict[str, Any]) -> Weights:
    converted = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
        "output.weight": weights["lm_head.weight"],
    }
    for layer in range(3):
        for stock, name in NAMES.items():
            converted[f"blk.{layer}.{name}"] = weights[f"model.layers.{layer}.{stock}"]
        for kind in ("weight", "bias"):
            parts = [weights[f"model.layers.{layer}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            converted[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate(parts)
    return converted


def apart(weights: Weights, config: dict[str, Any]) -> Weights:
    converted = fused(weights, config)
    for layer in range(3):
        for kind in ("weight", "bias"):
            del converted[f"blk.{layer}.attn_qkv.{kind}"]
            for part in "qkv":
                stock = f"model.layers.{layer}.self_attn.{part}_proj.{kind}"
                converted[f"blk.{layer}.attn_{part}.{kind}"] = weights[stock]
    return converted


KEYS = keys(CHATGLM, rope__dimension_count=8, attention__key_length=None, attention__value_length=None)
PROOF = "mlx-lm's glm with half of each head rotated"
WIDE = Wide(MORE_HEADS[0], MORE_HEADS[1] | {"rope.dimension_count": 8})

CASES = [
    Case("chatglm", "chatglm", CHATGLM, KEYS, fused, proof=PROOF, prepare=half_rotary, wide=WIDE),
    Case("chatglm-apart", "chatglm", CHATGLM, KEYS, apart, proof=PROOF, prepare=half_rotary, light=True),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
