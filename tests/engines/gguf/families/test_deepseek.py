"""deepseek against mlx-lm's deepseek."""

from __future__ import annotations

from tests.engines.gguf.families.helpers_family import Case, checks
from tests.engines.gguf.families.helpers_moe_names import (
    DECODER,
    GATED,
    ROUTED,
    SHARED,
    interleaved,
    moe_config,
    moe_metadata,
    renamed,
)

CONFIG = moe_config(
    "deepseek",
    num_key_value_heads=4,
    moe_intermediate_size=32,
    n_shared_experts=2,
    n_routed_experts=8,
    num_experts_per_tok=3,
    first_k_dense_replace=1,
)
METADATA = moe_metadata(
    CONFIG,
    {
        "vocab_size": 96,
        "rope.dimension_count": 16,
        "rope.scaling.type": "none",
        "leading_dense_block_count": 1,
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
        "expert_shared_count": 2,
        "expert_weights_scale": 1.0,
    },
)
TRANSFORMS = {"attn_q": interleaved("num_attention_heads"), "attn_k": interleaved("num_key_value_heads")}

CASES = [
    Case(
        "deepseek",
        "deepseek",
        CONFIG,
        METADATA,
        renamed(DECODER | GATED | ROUTED | SHARED, TRANSFORMS),
        required=("block_count", "expert_used_count", "context_length"),
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
