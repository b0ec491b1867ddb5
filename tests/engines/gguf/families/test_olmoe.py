"""olmoe against mlx-lm's olmoe."""

from __future__ import annotations

from tests.engines.gguf.families.helpers_family import Case, checks
from tests.engines.gguf.families.helpers_moe_names import DECODER, QK_NORMS, ROUTED, moe_config, moe_metadata, renamed

CONFIG = moe_config(
    "olmoe", num_key_value_heads=4, intermediate_size=32, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False
)
METADATA = moe_metadata(CONFIG, {"expert_count": 8, "expert_used_count": 3})

CASES = [
    Case(
        "olmoe",
        "olmoe",
        CONFIG,
        METADATA,
        renamed(DECODER | QK_NORMS | ROUTED),
        required=("block_count", "expert_used_count", "context_length"),
    ),
    Case(
        "olmoe-linear",
        "olmoe",
        CONFIG | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        METADATA | {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        renamed(DECODER | QK_NORMS | ROUTED),
        light=True,
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
