"""stablelm: StableLM 2 1.6B and 12B."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, keys_of_layer_norms
from tests.engines.gguf.families.helpers_family import Array, Case, Weights, checks

SMALL: dict[str, Any] = CONFIG | {
    "model_type": "stablelm",
    "layer_norm_eps": 1e-5,
    "partial_rotary_factor": 0.25,
    "use_qkv_bias": True,
    "use_parallel_residual": False,
    "tie_word_embeddings": False,
}
LARGE = SMALL | {"use_qkv_bias": False, "use_parallel_residual": True, "qk_layernorm": True}


def large_tensors(weights: Weights, config: dict[str, Any]) -> Weights:
    """The norms of a layer's heads are stacked."""
    rest, stacked = dict(weights), {}
    for layer in range(3):
        for part, heads in (("q", 4), ("k", 2)):
            prefix = f"model.layers.{layer}.self_attn.{part}_layernorm.norms"
            rows = [rest.pop(f"{prefix}.{head}.weight") for head in range(heads)]
            stacked[f"blk.{layer}.attn_{part}_norm.weight"] = np.stack(rows)
    return by_name("stablelm")(rest, config) | stacked


def initial(name: str, random: Array) -> Array | None:
    return 1 + 0.2 * random if ".norms." in name else None


CASES = [
    Case(
        "stablelm",
        "stablelm",
        SMALL,
        keys_of_layer_norms(SMALL, use_parallel_residual=False, rope__dimension_count=4),
        by_name("stablelm"),
    ),
    Case(
        "stablelm-12b",
        "stablelm",
        LARGE,
        keys_of_layer_norms(LARGE, use_parallel_residual=True, rope__dimension_count=4),
        large_tensors,
        floats=("_norm.",),
        initial=initial,
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
