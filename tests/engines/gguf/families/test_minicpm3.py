"""minicpm3."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, keys
from tests.engines.gguf.families.helpers_family import Case, checks

SHORT = np.array([1.0 + 0.1 * pair for pair in range(8)], np.float32)
LONG = np.array([1.0 + 0.5 * pair for pair in range(8)], np.float32)
MINICPM3: dict[str, Any] = CONFIG | {
    "model_type": "minicpm3",
    "hidden_size": 128,
    "num_key_value_heads": 4,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "scale_emb": 12.0,
    "dim_model_base": 256,
    "scale_depth": 1.4,
    "tie_word_embeddings": False,
    # The stock class rotates by its long factors only; a context as long as the first one is rotated by the short ones.
    "rope_scaling": {"original_max_position_embeddings": 256, "long_factor": SHORT.tolist()},
}
PLAIN = MINICPM3 | {"rope_scaling": {"original_max_position_embeddings": 256}}
KEYS: dict[str, Any] = {
    "attention__key_length": 48,
    "attention__q_lora_rank": 64,
    "attention__kv_lora_rank": 32,
    "rope__dimension_count": 16,
    "vocab_size": 96,
}
FACTORS = {"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG}
REQUIRED = ("block_count", "attention.q_lora_rank", "attention.kv_lora_rank", "rope.dimension_count")

CASES = [
    Case(
        "minicpm3",
        "minicpm3",
        MINICPM3,
        keys(MINICPM3, **KEYS),
        by_name("minicpm3"),
        extra=FACTORS,
        required=REQUIRED,
    ),
    Case("minicpm3-unscaled", "minicpm3", PLAIN, keys(PLAIN, **KEYS), by_name("minicpm3"), light=True),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
