"""Rotary scaling of architectures whose stock class has none in its configuration, against that class with the embedding put in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.rope_utils import initialize_rope

from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.families import (
    test_chatglm,
    test_cohere,
    test_ernie4_5_moe,
    test_gemma2,
    test_glm4,
    test_glm4moe,
    test_gpt,
    test_hunyuan_dense,
    test_hunyuan_moe,
    test_minimax_m2,
    test_mixtral,
    test_nemotron,
    test_phi2,
    test_qwen2moe,
    test_stablelm,
    test_starcoder2,
)
from tests.engines.gguf.families.helpers_family import Case, floats_of, tokens, write_case
from tests.engines.gguf.helpers_tiny import apart

YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR: dict[str, Any] = {"rope_type": "linear", "factor": 4.0}
KEYS: dict[str, dict[str, Any]] = {
    "yarn": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 64,
    },
    "linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
}
# Of each case: how many features of a head are rotated, and whether neighbours are rotated together.
ROTATED: dict[str, tuple[Case, int, bool]] = {
    case.id: (case, dims, traditional)
    for case, dims, traditional in (
        (test_chatglm.CASES[0], 8, True),
        (test_cohere.CASES[0], 16, True),
        (test_cohere.CASES[2], 16, True),
        (test_gemma2.CASES[0], 32, False),
        (test_gemma2.CASES[1], 32, False),
        (test_glm4.CASES[0], 16, True),
        (test_gpt.CASES[1], 4, False),
        (test_hunyuan_dense.CASES[0], 32, False),
        (test_nemotron.CASES[0], 16, False),
        (test_phi2.CASES[0], 8, False),
        (test_stablelm.CASES[0], 4, False),
        (test_starcoder2.CASES[0], 16, False),
        (test_ernie4_5_moe.CASES[0], 32, True),
        (test_glm4moe.CASES[1], 16, False),
        (test_hunyuan_moe.CASES[0], 16, False),
        (test_minimax_m2.CASES[0], 16, False),
        (test_mixtral.CASES[0], 16, False),
        (test_qwen2moe.CASES[0], 16, False),
    )
}


@pytest.mark.parametrize("kind", ["linear", "yarn"])
@pytest.mark.parametrize("name", ROTATED)
def test_scaling_of_metadata_is_that_of_the_rotary_embedding(name: str, kind: str, tmp_path: Path) -> None:
    case, dims, traditional = ROTATED[name]
    scaling = YARN if kind == "yarn" else LINEAR
    base = float(case.metadata.get("rope.freq_base", 10000.0))  # type: ignore[arg-type]

    def prepare(model: Any) -> None:
        case.prepare(model)
        for layer in model.layers:
            attention = layer.attention if "attention" in layer else layer.self_attn
            attention.rope = initialize_rope(dims, base, traditional, scaling, 256)

    metadata = {**case.metadata, **KEYS[kind]}
    stock, tensors = floats_of(replace(case, prepare=prepare))
    path = write_case(tmp_path / "scaled.gguf", replace(case, metadata=metadata), tensors)
    logits = build_model(read_header(path)).model(tokens(23))
    assert apart(logits, stock(tokens(23))) < 1e-4
    plain, _ = floats_of(case)
    assert apart(logits, plain(tokens(23))) > 1e-3
