"""phimoe against mlx-lm's phimoe."""

from __future__ import annotations

import math

import numpy as np

from tests.engines.gguf.families.helpers_family import CONVERTER, Case, checks
from tests.engines.gguf.families.helpers_moe_names import DECODER, moe_config, moe_metadata, renamed

NAMES = DECODER | {
    "block_sparse_moe.gate": "ffn_gate_inp",
    **{f"block_sparse_moe.switch_mlp.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
}
CONFIG = moe_config("phimoe", intermediate_size=32, num_local_experts=8, num_experts_per_tok=2)
METADATA = moe_metadata(
    CONFIG,
    {
        "expert_count": 8,
        "expert_used_count": 2,
        "rope.dimension_count": 16,
        "rope.scaling.original_context_length": 64,
        "attention.sliding_window": 262144,
    },
)
MAGNITUDE = math.sqrt(1 + math.log(256 / 64) / math.log(64))
SHORT = [1.0 + 0.01 * i for i in range(8)]
LONG = [1.0 + 0.5 * i for i in range(8)]

# With these two put into the stock class, its logits are llama.cpp's.
PROOF = (
    f"{CONVERTER}; llama.cpp has RMS norms and softmax scores where the model was trained with layer norms and a mixer"
)

CASES = [
    Case(
        "phimoe",
        "phimoe",
        CONFIG,
        METADATA,
        renamed(NAMES),
        proof=PROOF,
        required=("block_count", "expert_used_count", "context_length"),
        optional=tuple(f"{stem}.bias" for stem in ("attn_q", "attn_k", "attn_v", "attn_output")),
    ),
    Case(
        "phimoe-longrope",
        "phimoe",
        CONFIG
        | {
            "original_max_position_embeddings": 64,
            "rope_scaling": {
                "short_factor": SHORT,
                "long_factor": LONG,
                "short_mscale": MAGNITUDE,
                "long_mscale": MAGNITUDE,
            },
        },
        METADATA | {"rope.scaling.attn_factor": MAGNITUDE},
        renamed(NAMES),
        extra={
            "rope_factors_long.weight": np.array(LONG, np.float32),
            "rope_factors_short.weight": np.array(SHORT, np.float32),
        },
        proof=PROOF,
        light=True,
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)
