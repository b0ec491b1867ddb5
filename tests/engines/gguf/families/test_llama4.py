"""llama4 against mlx-lm's llama4."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_family import Case, Weights, checks
from tests.engines.gguf.families.helpers_moe_names import DECODER, moe_config, moe_metadata, renamed

NAMES = (
    DECODER
    | {f"feed_forward.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")}
    | {"feed_forward.router": "ffn_gate_inp"}
    | {f"feed_forward.experts.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")}
    | {f"feed_forward.shared_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
)
TEXT = moe_config(
    "llama4",
    num_hidden_layers=4,
    head_dim=32,
    attention_bias=False,
    attention_chunk_size=8192,
    interleave_moe_layer_step=2,
    intermediate_size=32,
    intermediate_size_mlp=96,
    num_local_experts=4,
    num_experts_per_tok=1,
    rope_scaling=None,
    use_qk_norm=True,
)
METADATA = moe_metadata(
    TEXT,
    {
        "feed_forward_length": 96,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "rope.dimension_count": 32,
        "vocab_size": 96,
        "interleave_moe_layer_step": 2,
        "expert_count": 4,
        "expert_used_count": 1,
        "expert_feed_forward_length": 32,
    },
)


def convert(weights: Weights, config: dict[str, Any]) -> Weights:
    return renamed(NAMES)({name.removeprefix("language_model."): value for name, value in weights.items()}, config)


CASES = [
    Case(
        "llama4",
        "llama4",
        {"model_type": "llama4", "text_config": TEXT},
        METADATA,
        convert,
        rows=(),
        required=("block_count", "expert_used_count", "interleave_moe_layer_step"),
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
