"""internlm2, ernie4_5, exaone and seed_oss, each against mlx-lm's class of its own."""

from __future__ import annotations

import re
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
from tests.engines.gguf.families.helpers_family import Case, Weights, checks

INTERNLM2: dict[str, Any] = CONFIG | {"model_type": "internlm2", "bias": False, "tie_word_embeddings": False}
ERNIE: dict[str, Any] = CONFIG | {"model_type": "ernie4_5", "head_dim": 32, "use_bias": False}
EXAONE: dict[str, Any] = CONFIG | {
    "model_type": "exaone",
    "num_layers": 3,
    "layer_norm_epsilon": 1e-5,
    "rope_scaling": LLAMA3,
}
SEED: dict[str, Any] = CONFIG | {
    "model_type": "seed_oss",
    "head_dim": 32,
    "attention_bias": True,
    "tie_word_embeddings": False,
}


def internlm2_tensors(weights: Weights, config: dict[str, Any]) -> Weights:
    """Q, K and V lie together by KV head: its query heads, its key head, its value head."""
    rest, split = dict(weights), {}
    for name in [name for name in weights if ".wqkv." in name]:
        value, layer = rest.pop(name), re.findall(r"\d+", name)[0]
        groups = value.reshape(2, 4, 16, *value.shape[1:])
        parts = {"q": groups[:, :2], "k": groups[:, 2], "v": groups[:, 3]}
        for part, rows in parts.items():
            whole = rows.reshape(-1, *value.shape[1:])
            split[f"blk.{layer}.attn_{part}.weight"] = interleaved(f".{part}_proj.", whole, config)
    return by_name("internlm2")(rest, config) | split


CASES = [
    Case("internlm2", "internlm2", INTERNLM2, keys(INTERNLM2), internlm2_tensors),
    Case("ernie4_5", "ernie4_5", ERNIE, keys(ERNIE), by_name("ernie4_5"), initial=faint_embeddings),
    Case(
        "ernie4_5-biased",
        "ernie4_5",
        ERNIE | {"use_bias": True},
        keys(ERNIE),
        by_name("ernie4_5"),
        initial=faint_embeddings,
    ),
    Case(
        "exaone",
        "exaone",
        EXAONE,
        keys(EXAONE, rope__dimension_count=16, attention__layer_norm_epsilon=1e-5),
        by_name("exaone"),
        extra={"rope_freqs.weight": llama3_factors(16, 10000.0)},
    ),
    Case("seed_oss", "seed_oss", SEED, keys(SEED), by_name("seed_oss")),
]
test_logits, test_quantised, test_batches, test_broken = checks(CASES)
