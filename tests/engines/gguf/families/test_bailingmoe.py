"""bailingmoe and bailingmoe2 against mlx-lm's bailing_moe."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_family import Case, Weights, checks
from tests.engines.gguf.families.helpers_moe_names import (
    DECODER,
    GATED,
    SHARED,
    interleaved,
    moe_config,
    moe_metadata,
    renamed,
)

NAMES = (
    DECODER
    | GATED
    | SHARED
    | {
        "attention.query_key_value": "attn_qkv",
        "attention.dense": "attn_output",
        "attention.query_layernorm": "attn_q_norm",
        "attention.key_layernorm": "attn_k_norm",
        "mlp.gate.gate_proj": "ffn_gate_inp",
        "mlp.gate.expert_bias": "exp_probs_b.bias",
        **{f"mlp.switch_mlp.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    }
)
WHOLE = {"model.word_embeddings": "token_embd"}
CONFIG = moe_config(
    "bailing_moe",
    moe_intermediate_size=32,
    num_experts=8,
    num_shared_experts=2,
    num_experts_per_tok=3,
    norm_topk_prob=True,
    first_k_dense_replace=0,
    topk_group=1,
)
METADATA = moe_metadata(
    CONFIG,
    {
        "vocab_size": 96,
        "rope.dimension_count": 16,
        "leading_dense_block_count": 0,
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
        "expert_shared_count": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.0,
    },
)
CONFIG2 = CONFIG | {
    "first_k_dense_replace": 1,
    "use_qk_norm": True,
    "partial_rotary_factor": 0.5,
    "moe_router_enable_expert_bias": True,
    "routed_scaling_factor": 2.5,
    "score_function": "sigmoid",
    "num_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 64,
    "n_group": 4,
    "topk_group": 2,
}
METADATA2 = METADATA | {
    "rope.dimension_count": 8,
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
    "expert_shared_feed_forward_length": 64,
    "expert_weights_scale": 2.5,
    "expert_gating_func": 2,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
    "nextn_predict_layers": 0,
}


def split(weights: Weights, config: dict[str, Any]) -> Weights:
    """Q, K and V apart, rows of Q and K interleaved."""
    converted = renamed(NAMES, whole=WHOLE)(weights, config)
    for name in [name for name in converted if "attn_qkv" in name]:
        whole = converted.pop(name)
        q, k, v = whole[:64], whole[64:96], whole[96:]
        converted[name.replace("qkv", "q")] = interleaved("num_attention_heads")(q, config)
        converted[name.replace("qkv", "k")] = interleaved("num_key_value_heads")(k, config)
        converted[name.replace("qkv", "v")] = v
    return converted


CASES = [
    Case(
        "bailingmoe",
        "bailingmoe",
        CONFIG,
        METADATA,
        split,
        required=("block_count", "expert_used_count", "context_length"),
    ),
    Case(
        "bailingmoe2",
        "bailingmoe2",
        CONFIG2,
        METADATA2,
        renamed(NAMES, whole=WHOLE),
        required=("block_count", "expert_used_count", "context_length"),
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
