"""phi2, with projections apart and fused."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, keys_of_layer_norms
from tests.engines.gguf.families.helpers_family import Case, Weights, checks

PHI2: dict[str, Any] = CONFIG | {
    "model_type": "phi",
    "num_key_value_heads": 4,
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": False,
}


def fused(weights: Weights, config: dict[str, Any]) -> Weights:
    """As early conversions have it."""
    converted = by_name("phi2")(weights, config)
    for layer in range(3):
        for kind in ("weight", "bias"):
            parts = [converted.pop(f"blk.{layer}.attn_{part}.{kind}") for part in "qkv"]
            converted[f"blk.{layer}.attn_qkv.{kind}"] = np.concatenate(parts)
    return converted


CASES = [
    Case("phi2", "phi2", PHI2, keys_of_layer_norms(PHI2, rope__dimension_count=8), by_name("phi2")),
    Case("phi2-fused", "phi2", PHI2, keys_of_layer_norms(PHI2, rope__dimension_count=8), fused, light=True),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
