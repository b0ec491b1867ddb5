"""granite."""

from __future__ import annotations

from typing import Any

from tests.engines.gguf.families.helpers_dense import (
    CONFIG,
    LLAMA3,
    by_name,
    faint_embeddings,
    interleaved,
    keys,
    llama3_factors,
)
from tests.engines.gguf.families.helpers_family import Case, checks

GRANITE: dict[str, Any] = CONFIG | {
    "model_type": "granite",
    "logits_scaling": 0.5,
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_bias": False,
    "mlp_bias": False,
}
# 1 / sqrt(16), and nothing else scaled: what the file need not say.
PLAIN = GRANITE | {
    "logits_scaling": 1.0,
    "attention_multiplier": 0.25,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
}
BIASED = GRANITE | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False}
SCALES: dict[str, Any] = {
    "logit_scale": 0.5,
    "attention__scale": 0.3,
    "embedding_scale": 3.0,
    "residual_scale": 0.4,
    "vocab_size": 96,
    "rope__dimension_count": 16,
}
TENSORS = by_name("granite", interleaved)

CASES = [
    Case(
        "granite",
        "granite",
        GRANITE,
        keys(GRANITE, **SCALES),
        TENSORS,
        required=("logit_scale",),
        initial=faint_embeddings,
    ),
    Case("granite-unscaled", "granite", PLAIN, keys(PLAIN, logit_scale=1.0, attention__scale=0.0), TENSORS, light=True),
    Case("granite-biased", "granite", BIASED, keys(BIASED, **SCALES), TENSORS, light=True),
    Case(
        "granite-llama3",
        "granite",
        GRANITE | {"rope_scaling": LLAMA3},
        keys(GRANITE, **SCALES),
        TENSORS,
        initial=faint_embeddings,
        light=True,
        extra={"rope_freqs.weight": llama3_factors(16, 10000.0)},
    ),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
