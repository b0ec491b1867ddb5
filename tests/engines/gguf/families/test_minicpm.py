"""minicpm, against mlx-lm's class of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, interleaved, keys
from tests.engines.gguf.families.helpers_family import Case, checks

MINICPM: dict[str, Any] = CONFIG | {
    "model_type": "minicpm",
    "scale_emb": 6.0,
    "scale_depth": 1.0,
    "dim_model_base": 16,
    "tie_word_embeddings": False,
}
# The models that were converted before their scales were written.
EARLY = MINICPM | {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256}
SCALES: dict[str, Any] = {"embedding_scale": 6.0, "residual_scale": 1.0 / 3**0.5, "logit_scale": 4.0}
FACTORS = {f"rope_factors_{kind}.weight": np.ones(8, np.float32) for kind in ("short", "long")}
TENSORS = by_name("minicpm", interleaved)

CASES = [
    Case("minicpm", "minicpm", MINICPM, keys(MINICPM, **SCALES), TENSORS),
    Case("minicpm-early", "minicpm", EARLY, keys(EARLY), TENSORS, extra=FACTORS, light=True),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
