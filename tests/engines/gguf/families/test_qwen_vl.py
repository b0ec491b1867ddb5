"""qwen2vl, qwen3vl and qwen3vlmoe, as text models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.engines.gguf.families import test_qwen3moe
from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, faint_embeddings, keys
from tests.engines.gguf.families.helpers_family import Case, checks

QWEN2: dict[str, Any] = CONFIG | {"model_type": "qwen2"}
QWEN3: dict[str, Any] = CONFIG | {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": False}
VISION: dict[str, Any] = {"rope__dimension_sections": [3, 3, 2, 0]}

CASES = [
    Case("qwen2vl", "qwen2vl", QWEN2, keys(QWEN2, **VISION), by_name("qwen2vl"), initial=faint_embeddings),
    Case("qwen3vl", "qwen3vl", QWEN3, keys(QWEN3, n_deepstack_layers=3, **VISION), by_name("qwen3vl")),
    replace(
        test_qwen3moe.CASES[0],
        id="qwen3vlmoe",
        architecture="qwen3vlmoe",
        metadata={**test_qwen3moe.CASES[0].metadata, "rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 3},
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
