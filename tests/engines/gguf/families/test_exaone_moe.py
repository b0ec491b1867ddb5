"""exaone-moe against mlx-lm's exaone_moe."""

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

SLIDES = [True, True, True, False]
CONFIG = moe_config(
    "exaone_moe",
    num_hidden_layers=4,
    head_dim=32,
    moe_intermediate_size=32,
    num_experts=8,
    num_experts_per_tok=3,
    num_shared_experts=2,
    sliding_window=8,
    layer_types=["sliding_attention" if slides else "full_attention" for slides in SLIDES],
    is_moe_layer=[False, True, True, True],
    routed_scaling_factor=2.5,
    norm_topk_prob=True,
)
METADATA = moe_metadata(
    CONFIG,
    {
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": SLIDES,
        "leading_dense_block_count": 1,
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
        "expert_shared_count": 2,
        "expert_shared_feed_forward_length": 64,
        "expert_weights_norm": True,
        "expert_weights_scale": 2.5,
        "expert_gating_func": 2,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
    },
)

CASES = [
    Case(
        "exaone-moe",
        "exaone-moe",
        CONFIG,
        METADATA,
        renamed(DECODER | QK_NORMS | GATED | ROUTED | SHARED),
        required=("block_count", "expert_used_count", "attention.sliding_window"),
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
