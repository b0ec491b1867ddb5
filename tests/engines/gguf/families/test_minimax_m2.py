"""minimax-m2 against mlx-lm's minimax."""

from __future__ import annotations

from tests.engines.gguf.families.helpers_family import Case, checks
from tests.engines.gguf.families.helpers_moe_names import DECODER, QK_NORMS, moe_config, moe_metadata, renamed

NAMES = (
    DECODER
    | QK_NORMS
    | {
        "block_sparse_moe.gate": "ffn_gate_inp",
        "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
        **{f"block_sparse_moe.switch_mlp.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    }
)
CONFIG = moe_config(
    "minimax",
    head_dim=32,
    intermediate_size=32,
    shared_intermediate_size=0,
    num_local_experts=8,
    num_experts_per_tok=3,
    rotary_dim=16,
)
METADATA = moe_metadata(
    CONFIG,
    {
        "attention.key_length": 32,
        "attention.value_length": 32,
        "rope.dimension_count": 16,
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
        "expert_gating_func": 2,
    },
)

CASES = [
    Case(
        "minimax-m2",
        "minimax-m2",
        CONFIG,
        METADATA,
        renamed(NAMES),
        required=("block_count", "expert_used_count", "context_length"),
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
