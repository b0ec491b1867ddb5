"""qwen3moe against mlx-lm's qwen3_moe."""

from __future__ import annotations

from typing import Any

from mlx_lm.models.rope_utils import initialize_rope

from tests.engines.gguf.families.helpers_family import Case, checks
from tests.engines.gguf.families.helpers_moe_names import DECODER, moe_config, moe_metadata, renamed

NAMES = DECODER | {
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "mlp.switch_mlp.gate_proj": "ffn_gate_exps",
    "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps",
}
CONFIG = moe_config(
    "qwen3_moe",
    head_dim=32,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=32,
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[],
)
METADATA = moe_metadata(
    CONFIG,
    {
        "attention.key_length": 32,
        "attention.value_length": 32,
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
    },
)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def rotate_by_yarn(model: Any) -> None:
    """The stock class reads a scaling and leaves it."""
    for layer in model.layers:
        layer.self_attn.rope = initialize_rope(32, CONFIG["rope_theta"], False, YARN, 256)


CASES = [
    Case("qwen3moe", "qwen3moe", CONFIG, METADATA, renamed(NAMES)),
    Case(
        "qwen3moe-tied-yarn",
        "qwen3moe",
        CONFIG | {"tie_word_embeddings": True, "rope_scaling": YARN, "norm_topk_prob": True},
        METADATA
        | {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
        renamed(NAMES),
        light=True,
        prepare=rotate_by_yarn,
        proof="the stock class with mlx-lm's own YaRN put in",
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
