"""granitemoe against mlx-lm's granitemoe."""

from __future__ import annotations

from tests.engines.gguf.families.helpers_family import Case, checks
from tests.engines.gguf.families.helpers_moe_names import DECODER, interleaved, moe_config, moe_metadata, renamed

NAMES = DECODER | {
    "block_sparse_moe.router.layer": "ffn_gate_inp",
    **{f"block_sparse_moe.switch_mlp.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
}
CONFIG = moe_config(
    "granitemoe",
    intermediate_size=32,
    num_local_experts=8,
    num_experts_per_tok=3,
    logits_scaling=0.5,
    attention_multiplier=0.2,
    embedding_multiplier=3.0,
    residual_multiplier=0.7,
    attention_bias=False,
)
METADATA = moe_metadata(
    CONFIG,
    {
        "expert_count": 8,
        "expert_used_count": 3,
        "rope.dimension_count": 16,
        "vocab_size": 96,
        "logit_scale": 0.5,
        "attention.scale": 0.2,
        "embedding_scale": 3.0,
        "residual_scale": 0.7,
    },
)
TRANSFORMS = {"attn_q": interleaved("num_attention_heads"), "attn_k": interleaved("num_key_value_heads")}

CASES = [
    Case(
        "granitemoe",
        "granitemoe",
        CONFIG,
        METADATA,
        renamed(NAMES, TRANSFORMS),
        required=("block_count", "expert_used_count", "logit_scale", "context_length"),
    ),
    Case(
        "granitemoe-tied",
        "granitemoe",
        CONFIG | {"tie_word_embeddings": True},
        METADATA,
        renamed(NAMES, TRANSFORMS),
        light=True,
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
