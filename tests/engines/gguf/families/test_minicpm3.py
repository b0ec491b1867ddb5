"""minicpm3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.families.helpers_dense import CONFIG, by_name, keys
from tests.engines.gguf.families.helpers_family import Case, checks, floats_of, logits_of, tokens, write_case

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


def test_head_that_is_the_embedding_is_scaled_as_one_of_its_own(tmp_path: Path) -> None:
    """As in the file of the one model there is."""
    case = CASES[0]
    _, tensors = floats_of(case)
    tensors["output.weight"] = tensors["token_embd.weight"]
    own = build_model(read_header(write_case(tmp_path / "own.gguf", case, tensors))).model
    del tensors["output.weight"]
    tied = build_model(read_header(write_case(tmp_path / "tied.gguf", case, tensors))).model
    np.testing.assert_array_equal(logits_of(tied, tokens(12), (6,)), logits_of(own, tokens(12), (6,)))
