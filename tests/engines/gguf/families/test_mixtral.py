"""llama files with experts against mlx-lm's mixtral."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.errors import CheckpointError
from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.families.helpers_family import Case, Weights, checks, floats_of, write_case
from tests.engines.gguf.families.helpers_moe_names import DECODER, interleaved, moe_config, moe_metadata, renamed

NAMES = DECODER | {
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.switch_mlp.gate_proj": "ffn_gate_exps",
    "block_sparse_moe.switch_mlp.up_proj": "ffn_up_exps",
    "block_sparse_moe.switch_mlp.down_proj": "ffn_down_exps",
}
CONFIG = moe_config("mixtral", intermediate_size=32, num_local_experts=8, num_experts_per_tok=2)
METADATA = moe_metadata(
    CONFIG, {"expert_count": 8, "expert_used_count": 2, "rope.dimension_count": 16, "vocab_size": 96}
)
TRANSFORMS = {"attn_q": interleaved("num_attention_heads"), "attn_k": interleaved("num_key_value_heads")}


def apart(weights: Weights, config: dict[str, Any]) -> Weights:
    """A tensor for each expert, as before April 2024."""
    tensors = renamed(NAMES, TRANSFORMS)(weights, config)
    for name in [name for name in tensors if "_exps" in name]:
        for expert, matrix in enumerate(tensors.pop(name)):
            tensors[name.replace("_exps", f".{expert}")] = matrix
    return tensors


CASES = [
    Case(
        "mixtral",
        "llama",
        CONFIG,
        METADATA,
        renamed(NAMES, TRANSFORMS),
        required=("block_count", "expert_used_count", "feed_forward_length", "context_length"),
    ),
    Case(
        "mixtral-apart",
        "llama",
        CONFIG,
        METADATA,
        apart,
        light=True,
    ),
]

test_logits, test_quantised, test_batches, test_broken = checks(CASES)


def test_experts_apart_of_two_types_are_refused(tmp_path: Path) -> None:
    _, tensors = floats_of(CASES[1])
    half = tensors["blk.1.ffn_up.3.weight"][1].astype(np.float16).view(np.uint8)
    path = write_case(tmp_path / "types.gguf", CASES[1], {**tensors, "blk.1.ffn_up.3.weight": ("F16", half)})
    with pytest.raises(CheckpointError, match=r"'blk.1.ffn_up.3.weight' is F16 where other experts are F32"):
        build_model(read_header(path))


def test_an_expert_apart_that_is_missing_is_named(tmp_path: Path) -> None:
    _, tensors = floats_of(CASES[1])
    del tensors["blk.1.ffn_up.3.weight"]
    with pytest.raises(CheckpointError, match=r"'blk.1.ffn_up.3.weight' is missing"):
        build_model(read_header(write_case(tmp_path / "missing.gguf", CASES[1], tensors)))
