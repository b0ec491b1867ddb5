"""afmoe against mlx-lm's afmoe."""

from __future__ import annotations

from tests.engines.gguf.families.helpers_family import Case, checks
from tests.engines.gguf.families.helpers_moe_names import (
    DECODER,
    GATED,
    QK_NORMS,
    SHARED,
    moe_config,
    moe_metadata,
    renamed,
)

NAMES = (
    DECODER
    | QK_NORMS
    | GATED
    | SHARED
    | {
        "post_attention_layernorm": "post_attention_norm",
        "pre_mlp_layernorm": "ffn_norm",
        "post_mlp_layernorm": "post_ffw_norm",
        "self_attn.gate_proj": "attn_gate",
        "mlp.router.gate": "ffn_gate_inp",
        "mlp.expert_bias": "exp_probs_b.bias",
        **{f"mlp.experts.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    }
)
CONFIG = moe_config(
    "afmoe",
    num_hidden_layers=4,
    head_dim=32,
    moe_intermediate_size=32,
    num_experts=8,
    num_experts_per_tok=3,
    num_shared_experts=1,
    num_dense_layers=1,
    route_norm=True,
    route_scale=2.5,
    sliding_window=8,
    layer_types=["sliding_attention"] * 3 + ["full_attention"],
)
METADATA = moe_metadata(
    CONFIG,
    {
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 8,
        "rope.dimension_count": 32,
        "vocab_size": 96,
        "leading_dense_block_count": 1,
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
        "expert_shared_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "expert_gating_func": 2,
    },
)

CASES = [
    Case(
        "afmoe",
        "afmoe",
        CONFIG,
        METADATA,
        renamed(NAMES),
        required=("block_count", "expert_used_count", "attention.sliding_window"),
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
