"""hunyuan-dense."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, keys
from tests.engines.gguf.families.helpers_family import Case, checks

HUNYUAN: dict[str, Any] = CONFIG | {
    "model_type": "hunyuan_v1_dense",
    "head_dim": 32,
    "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0},
}
UNNORMED = HUNYUAN | {"use_qk_norm": False, "tie_word_embeddings": False}
# The converter scales the base and says that nothing is left to scale.
KEYS: dict[str, Any] = {
    "rope__freq_base": 10000.0 * 1000.0 ** (32 / 30),
    "rope__scaling__type": "none",
    "rope__scaling__factor": 1.0,
    "rope__scaling__original_context_length": 262144,
}

CASES = [
    Case("hunyuan-dense", "hunyuan-dense", HUNYUAN, keys(HUNYUAN, **KEYS), by_name("hunyuan-dense")),
    Case(
        "hunyuan-dense-unnormed",
        "hunyuan-dense",
        UNNORMED,
        keys(UNNORMED, **KEYS),
        by_name("hunyuan-dense"),
        light=True,
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
