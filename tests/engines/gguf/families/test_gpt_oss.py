"""gpt-oss against mlx-lm's gpt_oss."""

from __future__ import annotations

from tests.engines.gguf.families.helpers_family import Case, checks
from tests.engines.gguf.families.helpers_moe_names import DECODER, moe_config, moe_metadata, renamed

NAMES = DECODER | {
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
CONFIG = moe_config(
    "gpt_oss",
    num_hidden_layers=4,
    head_dim=32,
    intermediate_size=32,
    num_local_experts=8,
    num_experts_per_tok=2,
    sliding_window=8,
)
METADATA = moe_metadata(
    CONFIG,
    {
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.sliding_window": 8,
        "expert_count": 8,
        "expert_used_count": 2,
        "expert_feed_forward_length": 32,
    },
)
SCALING = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}

CASES = [
    Case(
        "gpt-oss",
        "gpt-oss",
        CONFIG | {"rope_scaling": SCALING},
        METADATA
        | {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
        },
        renamed(NAMES),
        required=("block_count", "expert_count", "attention.sliding_window", "context_length"),
        optional=tuple(f"{stem}.bias" for stem in NAMES.values()),
    ),
    Case("gpt-oss-unscaled", "gpt-oss", CONFIG, METADATA, renamed(NAMES), light=True),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
