"""smollm3."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, interleaved, keys
from tests.engines.gguf.families.helpers_family import Case, checks

SMOLLM3: dict[str, Any] = CONFIG | {"model_type": "smollm3", "num_hidden_layers": 5}
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
YARN_KEYS: dict[str, Any] = {
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 4.0,
    "rope__scaling__original_context_length": 64,
}
TENSORS = by_name("smollm3", interleaved)

CASES = [
    Case("smollm3", "smollm3", SMOLLM3, keys(SMOLLM3, vocab_size=96, rope__dimension_count=16), TENSORS),
    Case("smollm3-yarn", "smollm3", SMOLLM3 | {"rope_scaling": YARN}, keys(SMOLLM3, **YARN_KEYS), TENSORS, light=True),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
