"""mimo2 against mlx-lm's mimo_v2_flash."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tests.engines.gguf.families.helpers_family import Case, Weights, checks
from tests.engines.gguf.families.helpers_moe_names import DECODER, GATED, ROUTED, moe_config, moe_metadata, renamed

NAMES = DECODER | GATED | ROUTED | {"self_attn.attention_sink_bias": "attn_sinks.weight"}
SLIDES = [0, 1, 1, 0]
CONFIG = moe_config(
    "mimo_v2_flash",
    num_hidden_layers=4,
    layernorm_epsilon=1e-5,
    head_dim=32,
    v_head_dim=16,
    swa_head_dim=32,
    swa_v_head_dim=16,
    swa_num_attention_heads=4,
    swa_num_key_value_heads=4,
    partial_rotary_factor=0.5,
    rope_theta=50000.0,
    swa_rope_theta=10000.0,
    sliding_window_size=8,
    hybrid_layer_pattern=SLIDES,
    add_swa_attention_sink_bias=True,
    add_full_attention_sink_bias=False,
    attention_value_scale=0.7,
    moe_layer_freq=[0, 1, 1, 1],
    moe_intermediate_size=32,
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_shared_experts=None,
    routed_scaling_factor=None,
    topk_method="noaux_tc",
    scoring_func="sigmoid",
    norm_topk_prob=True,
    n_group=1,
    topk_group=1,
)
METADATA = moe_metadata(
    CONFIG,
    {
        "attention.head_count_kv": [2, 4, 4, 2],
        "attention.key_length": 32,
        "attention.value_length": 16,
        "attention.value_scale": 0.7,
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": SLIDES,
        "rope.dimension_count": 16,
        "rope.freq_base_swa": 10000.0,
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
        "expert_gating_func": 2,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
    },
)
REQUIRED = ("block_count", "expert_used_count", "attention.sliding_window_pattern", "attention.key_length")


def joined(weights: Weights, config: dict[str, Any]) -> Weights:
    """Q, K and V in one matrix."""
    tensors = renamed(NAMES)(weights, config)
    for name in [name for name in tensors if re.search(r"attn_q\.", name)]:
        parts = [tensors.pop(name.replace("attn_q", f"attn_{part}")) for part in "qkv"]
        tensors[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    return tensors


CASES = [
    Case(
        "mimo2",
        "mimo2",
        CONFIG,
        METADATA,
        renamed(NAMES),
        required=REQUIRED,
        # Only the files say which layers have them.
        optional=("attn_sinks.weight", "ffn_gate_inp.weight"),
    ),
    Case("mimo2-joined", "mimo2", CONFIG, METADATA, joined, light=True),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
