"""glm4."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, keys
from tests.engines.gguf.families.helpers_family import Array, Case, checks

GLM4: dict[str, Any] = CONFIG | {
    "model_type": "glm4",
    "head_dim": 32,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
    "tie_word_embeddings": False,
}


def in_halves(name: str, value: Array, config: dict[str, Any]) -> Array:
    """Of vision models: the rotated rows of each head of Q and K, the first half of them, from pairs to halves."""
    if not (".q_proj." in name or ".k_proj." in name):
        return value
    heads = value.reshape(-1, 32, *value.shape[1:])
    rotated = heads[:, :16].reshape(-1, 8, 2, *value.shape[1:]).swapaxes(1, 2).reshape(-1, 16, *value.shape[1:])
    converted = heads.copy()
    converted[:, :16] = rotated
    return converted.reshape(value.shape)


CASES = [
    Case("glm4", "glm4", GLM4, keys(GLM4, rope__dimension_count=16), by_name("glm4")),
    Case(
        "glm4-vision",
        "glm4",
        GLM4 | {"attention_bias": False},
        keys(GLM4, rope__dimension_count=16, rope__dimension_sections=[4, 6, 6, 0]),
        by_name("glm4", in_halves),
        light=True,
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
