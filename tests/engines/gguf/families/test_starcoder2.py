"""starcoder2."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, faint_embeddings, keys_of_layer_norms
from tests.engines.gguf.families.helpers_family import Case, checks

CONFIGURATION: dict[str, Any] = CONFIG | {"model_type": "starcoder2", "norm_epsilon": 1e-5}
UNTIED = CONFIGURATION | {"tie_word_embeddings": False}
KEYS = keys_of_layer_norms(CONFIGURATION)
TENSORS = by_name("starcoder2")

CASES = [
    Case("starcoder2", "starcoder2", CONFIGURATION, KEYS, TENSORS, initial=faint_embeddings),
    Case("starcoder2-untied", "starcoder2", UNTIED, KEYS, TENSORS, light=True),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
