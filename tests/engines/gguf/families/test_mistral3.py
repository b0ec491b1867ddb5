"""mistral3, as Mistral Small 3.1 and as Ministral 3."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, interleaved, keys
from tests.engines.gguf.families.helpers_family import Case, checks

SMALL: dict[str, Any] = CONFIG | {"model_type": "llama", "head_dim": 32, "tie_word_embeddings": False}
MINISTRAL: dict[str, Any] = CONFIG | {
    "model_type": "ministral3",
    "head_dim": 32,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 8,  # so that queries have grown twice within the prompt
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "rope_theta": 10000.0,
        "llama_4_scaling_beta": 0.5,
    },
}
LLAMA_KEYS: dict[str, Any] = {"vocab_size": 96, "rope__dimension_count": 32}
MINISTRAL_KEYS: dict[str, Any] = LLAMA_KEYS | {
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 16.0,
    "rope__scaling__original_context_length": 8,
    "rope__scaling__yarn_beta_fast": 32.0,
    "rope__scaling__yarn_beta_slow": 1.0,
    "rope__scaling__yarn_log_multiplier": 1.0,
    "attention__temperature_scale": 0.5,
}
TENSORS = by_name("llama", interleaved)

CASES = [
    Case("mistral3", "mistral3", SMALL, keys(SMALL, **LLAMA_KEYS), TENSORS, light=True),
    Case(
        "mistral3-yarn",
        "mistral3",
        SMALL | {"rope_scaling": MINISTRAL["rope_parameters"]},
        keys(SMALL, **{key: value for key, value in MINISTRAL_KEYS.items() if "temperature" not in key}),
        TENSORS,
        light=True,
    ),
    Case("ministral3", "mistral3", MINISTRAL, keys(MINISTRAL, **MINISTRAL_KEYS), TENSORS),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
