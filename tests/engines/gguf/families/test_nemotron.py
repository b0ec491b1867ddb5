"""nemotron."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, keys_of_layer_norms, plus_one
from tests.engines.gguf.families.helpers_family import Case, checks

NEMOTRON: dict[str, Any] = CONFIG | {
    "model_type": "nemotron",
    "hidden_act": "relu2",
    "norm_eps": 1e-5,
    "head_dim": 32,
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": False,
}
SCALED = NEMOTRON | {"rope_scaling": {"type": "linear", "factor": 4.0}, "attention_bias": True, "mlp_bias": True}
KEYS: dict[str, Any] = {"vocab_size": 96, "rope__dimension_count": 16}
LINEAR: dict[str, Any] = {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}

CASES = [
    Case(
        "nemotron",
        "nemotron",
        NEMOTRON,
        keys_of_layer_norms(NEMOTRON, rope__scaling__type="none", **KEYS),
        by_name("nemotron", plus_one),
    ),
    Case(
        "nemotron-scaled",
        "nemotron",
        SCALED,
        keys_of_layer_norms(SCALED, **KEYS, **LINEAR),
        by_name("nemotron", plus_one),
        light=True,
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
