"""ernie4_5-moe against mlx-lm's ernie4_5_moe, and with biased choice of experts against one of the test's own."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.base import Module

from tests.engines.gguf.families.helpers_family import CONVERTER, Case, checks
from tests.engines.gguf.families.helpers_moe_names import (
    DECODER,
    GATED,
    ROUTED,
    SHARED,
    moe_config,
    moe_metadata,
    renamed,
)

NAMES = DECODER | GATED | ROUTED | SHARED | {"mlp.correction": "exp_probs_b.bias"}
CONFIG = moe_config(
    "ernie4_5_moe",
    head_dim=32,
    use_bias=False,
    moe_num_experts=8,
    moe_k=3,
    moe_intermediate_size=32,
    moe_num_shared_experts=2,
    moe_layer_start_index=1,
)
METADATA = moe_metadata(
    CONFIG,
    {
        "attention.key_length": 32,
        "attention.value_length": 32,
        "expert_count": 8,
        "expert_used_count": 3,
        "interleave_moe_layer_step": 1,
        "leading_dense_block_count": 1,
        "expert_feed_forward_length": 32,
        "expert_shared_count": 2,
        "expert_shared_feed_forward_length": 64,
    },
)


class Biased(Module):
    """The stock block, a token and an expert at a time, with a correction."""

    def __init__(self, stock: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gate, self.switch_mlp, self.shared_experts = stock.gate, stock.switch_mlp, stock.shared_experts
        self.correction = mx.zeros(8)

    def __call__(self, x: mx.array) -> mx.array:
        rows, length, width = x.shape
        out = []
        for token in x.reshape(-1, width):
            scores = mx.softmax(self.gate(token))
            order = np.argsort(-np.array(scores + self.correction))[:3].tolist()
            total = float(np.array(scores)[order].sum())
            answer = self.shared_experts(token)
            for expert in order:
                gate, up, down = (self.switch_mlp[f"{part}_proj"].weight[expert] for part in ("gate", "up", "down"))
                hidden = token @ gate.T
                hidden = hidden * mx.sigmoid(hidden) * (token @ up.T)
                answer = answer + (hidden @ down.T) * (scores[expert] / total)
            out.append(answer)
        return mx.stack(out).reshape(rows, length, width)


def with_correction(model: Any) -> None:
    for layer in model.layers[1:]:
        layer.mlp = Biased(layer.mlp)


CASES = [
    Case("ernie4_5-moe", "ernie4_5-moe", CONFIG, METADATA, renamed(NAMES), light=True),
    Case(
        "ernie4_5-moe-biased",
        "ernie4_5-moe",
        CONFIG,
        METADATA,
        renamed(NAMES),
        proof=f"{CONVERTER}; routed blocks with a correction bias written out in the test",
        prepare=with_correction,
        required=("block_count", "expert_used_count", "context_length"),
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
