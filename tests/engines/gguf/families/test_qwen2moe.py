"""qwen2moe against mlx-lm's qwen2_moe."""

from __future__ import annotations

from tests.engines.gguf.families.helpers_family import Case, checks
from tests.engines.gguf.families.helpers_moe_names import DECODER, moe_config, moe_metadata, renamed

NAMES = DECODER | {
    "mlp.gate": "ffn_gate_inp",
    "mlp.switch_mlp.gate_proj": "ffn_gate_exps",
    "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}
CONFIG = moe_config(
    "qwen2_moe",
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=64,
)
METADATA = moe_metadata(
    CONFIG,
    {
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
        "expert_shared_feed_forward_length": 64,
    },
)

CASES = [
    Case(
        "qwen2moe",
        "qwen2moe",
        CONFIG,
        METADATA,
        renamed(NAMES, {"ffn_gate_inp_shexp": lambda value, config: value.reshape(-1)}),
        required=("block_count", "expert_count", "expert_used_count"),
        optional=("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
