"""step35 against mlx-lm's step3p5, whose norms have the one added that the converter adds."""

from __future__ import annotations

import numpy as np

from tests.engines.gguf.families.helpers_family import Case, checks
from tests.engines.gguf.families.helpers_moe_names import (
    DECODER,
    GATED,
    QK_NORMS,
    moe_config,
    moe_metadata,
    renamed,
)

NAMES = (
    DECODER
    | GATED
    | QK_NORMS
    | {
        "self_attn.g_proj": "attn_gate",
        "mlp.gate.gate": "ffn_gate_inp",
        "mlp.gate.router_bias": "exp_probs_b.bias",
        **{f"mlp.switch_mlp.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
        **{f"mlp.share_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
    }
)
SLIDES = [False, True, True, True]
CONFIG = moe_config(
    "step3p5",
    num_hidden_layers=4,
    num_attention_groups=2,
    attention_other_setting={"num_attention_heads": 6, "num_attention_groups": 3},
    head_dim=32,
    rope_theta=[50000.0, 10000.0, 10000.0, 10000.0],
    sliding_window=8,
    layer_types=["sliding_attention" if slides else "full_attention" for slides in SLIDES],
    partial_rotary_factors=[0.5, 1.0, 1.0, 1.0],
    moe_num_experts=8,
    moe_top_k=3,
    moe_intermediate_size=32,
    share_expert_dim=32,
    moe_layers_enum="1,2,3",
    moe_router_scaling_factor=3.0,
    norm_expert_weight=True,
    swiglu_limits=[0.0, 0.0, 0.3, 0.0],
    swiglu_limits_shared=[0.0, 0.0, 0.0, 0.2],
)
METADATA = moe_metadata(
    CONFIG | {"rope_theta": 50000.0},
    {
        "attention.head_count": [4, 6, 6, 6],
        "attention.head_count_kv": [2, 3, 3, 3],
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": SLIDES,
        "rope.dimension_count": 32,
        "rope.freq_base_swa": 10000.0,
        "leading_dense_block_count": 1,
        "moe_every_n_layers": 1,
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
        "expert_shared_feed_forward_length": 32,
        "expert_weights_scale": 3.0,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "swiglu_clamp_exp": [0.0, 0.0, 0.3, 0.0],
        "swiglu_clamp_shexp": [0.0, 0.0, 0.0, 0.2],
    },
)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama3_factors() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    wavelengths = 2 * np.pi * 50000.0 ** (np.arange(0, 16, 2) / 16)
    smooth = (64 / wavelengths - 1) / 3
    between = 1 / ((1 - smooth) / 8 + smooth)
    factors = np.where(wavelengths < 16, 1.0, np.where(wavelengths > 64, 8.0, between))
    return np.concatenate([factors, np.ones(8)]).astype(np.float32)


CASES = [
    Case(
        "step35",
        "step35",
        CONFIG,
        METADATA,
        renamed(NAMES),
        required=("block_count", "expert_used_count", "attention.sliding_window_pattern", "attention.key_length"),
    ),
    Case(
        "step35-llama3",
        "step35",
        CONFIG | {"rope_scaling": LLAMA3, "yarn_only_types": ["full_attention"]},
        METADATA,
        renamed(NAMES),
        extra={"rope_freqs.weight": llama3_factors()},
        light=True,
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
