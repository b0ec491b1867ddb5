"""apertus."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.engines.gguf.families.helpers_dense import CONFIG, LLAMA3, MORE_HEADS, by_name, keys, llama3_factors
from tests.engines.gguf.families.helpers_family import Array, Case, Weights, Wide, checks

APERTUS: dict[str, Any] = CONFIG | {
    "model_type": "apertus",
    "mlp_bias": False,
    "attention_bias": False,
    "post_norm": False,
    "qk_norm": True,
    "rope_scaling": LLAMA3,
    "tie_word_embeddings": False,
}
ACTIVATION = {"alpha_n": [0.2, 0.3, 0.4], "alpha_p": [0.7, 0.6, 0.5], "beta": [0.5, 0.4, 0.5], "eps": [-1e-6] * 3}


def initial(name: str, random: Array) -> Array | None:
    if "act_fn" not in name:
        return None
    parts = name.split(".")
    return np.array(ACTIVATION[parts[-1]][int(parts[2])], np.float32)


def tensors(weights: Weights, config: dict[str, Any]) -> Weights:
    """The activation's parameters are metadata."""
    return by_name("apertus")({name: value for name, value in weights.items() if "act_fn" not in name}, config)


CASES = [
    Case(
        "apertus",
        "apertus",
        APERTUS,
        keys(APERTUS, rope__dimension_count=16, vocab_size=96),
        tensors,
        extra={"rope_freqs.weight": llama3_factors(16, 10000.0)},
        whole_keys={f"xielu.{name}": values for name, values in ACTIVATION.items()},
        initial=initial,
        wide=Wide(*MORE_HEADS),
    )
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
