"""hunyuan-moe against mlx-lm's hunyuan, whose routed blocks are told to normalise weights."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

from tests.engines.gguf.families.helpers_family import CONVERTER, Case, checks
from tests.engines.gguf.families.helpers_moe_names import DECODER, moe_config, moe_metadata, renamed

NAMES = DECODER | {
    "self_attn.query_layernorm": "attn_q_norm",
    "self_attn.key_layernorm": "attn_k_norm",
    "mlp.block.gate.wg": "ffn_gate_inp",
    **{f"mlp.block.switch_mlp.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    **{f"mlp.block.shared_mlp.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}
CONFIG = moe_config(
    "hunyuan",
    intermediate_size=32,
    attention_bias=False,
    moe_topk=3,
    num_experts=8,
    num_shared_expert=1,
    use_mixed_mlp_moe=True,
    use_qk_norm=True,
    use_cla=False,
    cla_share_factor=2,
    moe_intermediate_size=32,
    tie_word_embeddings=True,
    rope_scaling={"type": "dynamic", "factor": 1.0, "alpha": 8.0},
)
METADATA = moe_metadata(
    CONFIG,
    {
        "expert_count": 8,
        "expert_used_count": 3,
        "expert_feed_forward_length": 32,
        "expert_shared_feed_forward_length": 32,
        "expert_shared_count": 1,
        "rope.freq_base": 10000.0 * 8.0 ** (16 / 14),
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
        "rope.scaling.original_context_length": 256,
    },
)


class Normalised(Module):
    """The stock block's answer with the routed part divided by the sum of the chosen scores."""

    def __init__(self, stock: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.block = stock

    def __call__(self, x: mx.array) -> mx.array:
        shared = self.block.shared_mlp(x)
        scores = mx.sort(mx.softmax(self.block.gate(x), axis=-1), axis=-1)
        total: mx.array = scores[..., -3:].sum(axis=-1, keepdims=True)
        answer: mx.array = (self.block(x) - shared) / total + shared
        return answer


def normalised(model: Any) -> None:
    for layer in model.layers:
        layer.mlp = Normalised(layer.mlp)


CASES = [
    Case(
        "hunyuan-moe",
        "hunyuan-moe",
        CONFIG,
        METADATA,
        renamed(NAMES),
        proof=f"{CONVERTER}; weights of chosen experts normalised in the test",
        prepare=normalised,
        required=("block_count", "expert_used_count", "context_length"),
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
