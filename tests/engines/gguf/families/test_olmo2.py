"""olmo2, as OLMo 2 and as OLMo 3."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, keys
from tests.engines.gguf.families.helpers_family import Case, checks

OLMO2: dict[str, Any] = CONFIG | {"model_type": "olmo2", "tie_word_embeddings": False}
OLMO3: dict[str, Any] = OLMO2 | {
    "model_type": "olmo3",
    "num_hidden_layers": 5,
    "sliding_window": 8,
    "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64},
}
OLMO3_KEYS: dict[str, Any] = {
    "attention__sliding_window": 8,
    "attention__sliding_window_pattern": [True, True, True, False, True],
    "rope__scaling__type": "yarn",
    "rope__scaling__factor": 8.0,
    "rope__scaling__original_context_length": 64,
    "rope__scaling__yarn_attn_factor": 1.2079441541679836,
}
TENSORS = by_name("olmo2")

CASES = [
    Case("olmo2", "olmo2", OLMO2, keys(OLMO2), TENSORS, light=True),
    Case("olmo3", "olmo2", OLMO3, keys(OLMO3, **OLMO3_KEYS), TENSORS),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
