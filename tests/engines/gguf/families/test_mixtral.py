"""llama files with experts against mlx-lm's mixtral."""

from __future__ import annotations

from tests.engines.gguf.families.helpers_family import Case, checks
from tests.engines.gguf.families.helpers_moe_names import DECODER, interleaved, moe_config, moe_metadata, renamed

NAMES = DECODER | {
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.switch_mlp.gate_proj": "ffn_gate_exps",
    "block_sparse_moe.switch_mlp.up_proj": "ffn_up_exps",
    "block_sparse_moe.switch_mlp.down_proj": "ffn_down_exps",
}
CONFIG = moe_config("mixtral", intermediate_size=32, num_local_experts=8, num_experts_per_tok=2)
METADATA = moe_metadata(
    CONFIG, {"expert_count": 8, "expert_used_count": 2, "rope.dimension_count": 16, "vocab_size": 96}
)
TRANSFORMS = {"attn_q": interleaved("num_attention_heads"), "attn_k": interleaved("num_key_value_heads")}

CASES = [
    Case(
        "mixtral",
        "llama",
        CONFIG,
        METADATA,
        renamed(NAMES, TRANSFORMS),
        required=("block_count", "expert_used_count", "feed_forward_length", "context_length"),
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
