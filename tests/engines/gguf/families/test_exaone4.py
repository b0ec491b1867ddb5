"""exaone4, with windows and without."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_dense import CONFIG, LLAMA3, by_name, keys, llama3_factors
from tests.engines.gguf.families.helpers_family import Case, checks

PLAIN: dict[str, Any] = CONFIG | {
    "model_type": "exaone4",
    "head_dim": 16,
    "rope_scaling": None,
    "sliding_window": None,
    "sliding_window_pattern": None,
}
WINDOWED = PLAIN | {
    "num_hidden_layers": 5,
    "rope_scaling": LLAMA3,
    "sliding_window": 8,
    "sliding_window_pattern": "LLLG",
    "tie_word_embeddings": False,
}
WINDOW_KEYS: dict[str, Any] = {
    "vocab_size": 96,
    "attention__sliding_window": 8,
    "attention__sliding_window_pattern": [True, True, True, False, True],
}
TENSORS = by_name("exaone4")

CASES = [
    Case("exaone4", "exaone4", PLAIN, keys(PLAIN, vocab_size=96), TENSORS, light=True),
    Case(
        "exaone4-windows",
        "exaone4",
        WINDOWED,
        keys(WINDOWED, **WINDOW_KEYS),
        TENSORS,
        extra={"rope_freqs.weight": llama3_factors(16, 10000.0)},
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
