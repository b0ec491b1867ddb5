"""dots1 against mlx-lm's dots1."""

from __future__ import annotations

from tests.engines.gguf.families.helpers_family import Case, checks
from tests.engines.gguf.families.helpers_moe_names import (
    DECODER,
    GATED,
    QK_NORMS,
    ROUTED,
    SHARED,
    moe_config,
    moe_metadata,
    renamed,
)

NAMES = (
    DECODER
    | QK_NORMS
    | GATED
    | ROUTED
    | SHARED
    | {f"mlp.experts.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")}
)
CONFIG = moe_config(
    "dots1",
    num_key_value_heads=4,
    head_dim=32,
    moe_intermediate_size=32,
    n_routed_experts=8,
    n_shared_experts=2,
    num_experts_per_tok=3,
    first_k_dense_replace=1,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
)
METADATA = moe_metadata(
    CONFIG,
    {
        "attention.key_length": 32,
        "attention.value_length": 32,
        "leading_dense_block_count": 1,
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
        "expert_shared_count": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "expert_gating_func": 2,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
    },
)

CASES = [
    Case(
        "dots1",
        "dots1",
        CONFIG,
        METADATA,
        renamed(NAMES),
        required=("block_count", "expert_used_count", "expert_shared_count"),
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
