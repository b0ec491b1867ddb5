"""glm4moe against mlx-lm's glm4_moe."""

from __future__ import annotations

import numpy as np

from tests.engines.gguf.families.helpers_family import Case, checks
from tests.engines.gguf.families.helpers_moe_names import DECODER, moe_config, moe_metadata, renamed

NAMES = DECODER | {
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.switch_mlp.gate_proj": "ffn_gate_exps",
    "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
CONFIG = moe_config(
    "glm4_moe",
    head_dim=32,
    moe_intermediate_size=32,
    norm_topk_prob=True,
    n_group=1,
    topk_group=1,
    n_shared_experts=2,
    n_routed_experts=8,
    routed_scaling_factor=1.5,
    num_experts_per_tok=3,
    first_k_dense_replace=1,
    rope_scaling=None,
    use_qk_norm=True,
    attention_bias=True,
    partial_rotary_factor=0.5,
)
METADATA = moe_metadata(
    CONFIG,
    {
        "attention.key_length": 32,
        "attention.value_length": 32,
        "rope.dimension_count": 16,
        "leading_dense_block_count": 1,
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
        "expert_shared_count": 2,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        "expert_weights_norm": True,
        "expert_weights_scale": 1.5,
        "expert_gating_func": 2,
    },
)
PREDICTS_FURTHER = {
    "blk.3.nextn.eh_proj.weight": np.ones((64, 128), np.float32),
    "blk.3.attn_norm.weight": np.ones(64, np.float32),
}

CASES = [
    Case(
        "glm4moe",
        "glm4moe",
        CONFIG,
        METADATA | {"block_count": 4, "nextn_predict_layers": 1},
        renamed(NAMES),
        extra=PREDICTS_FURTHER,
        required=("block_count", "expert_count", "expert_used_count"),
        # The set of dense blocks has one member.
        optional=("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    ),
    Case(
        "glm4moe-no-qk-norms-groups",
        "glm4moe",
        CONFIG | {"use_qk_norm": False, "attention_bias": False, "n_group": 4, "topk_group": 2},
        METADATA | {"expert_group_count": 4, "expert_group_used_count": 2},
        renamed(NAMES),
        light=True,
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
