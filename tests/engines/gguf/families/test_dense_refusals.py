"""Keys that change the arithmetic of dense architectures in a way that is not supported: refused by name, never guessed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.errors import CheckpointError
from engines.gguf.model import build_model
from engines.gguf.writer import CheckpointValue
from engines.header import read_header
from tests.engines.gguf.families import (
    test_apertus,
    test_cohere,
    test_exaone4,
    test_gemma2,
    test_gemma3n,
    test_gemma4,
    test_glm4,
    test_gpt,
    test_granite,
    test_hunyuan_dense,
    test_llama_kin,
    test_minicpm3,
    test_mistral3,
    test_olmo2,
    test_stablelm,
    test_starcoder2,
)
from tests.engines.gguf.families.helpers_family import Case, floats_of, write_case

BY_ID: dict[str, Case] = {
    case.id: case
    for module in (
        test_apertus,
        test_cohere,
        test_exaone4,
        test_gemma2,
        test_gemma3n,
        test_gemma4,
        test_glm4,
        test_gpt,
        test_granite,
        test_hunyuan_dense,
        test_llama_kin,
        test_minicpm3,
        test_mistral3,
        test_olmo2,
        test_stablelm,
        test_starcoder2,
    )
    for case in module.CASES
}


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("cohere2", "attention.sliding_window_pattern", [True, False, True, True, False]),
        ("cohere2", "rope.freq_base_swa", 500.0),
        ("cohere2", "rope.dimension_count", 8),
        ("command-r", "attention.key_length", 32),
        ("exaone4-windows", "attention.sliding_window_pattern", [True, False, True, True, False]),
        ("exaone4-windows", "attention.sliding_window_pattern", [True] * 5),
        ("exaone4", "rope.scaling.type", "longrope"),
        ("gemma", "attn_logit_softcapping", 50.0),
        ("gemma", "attention.sliding_window", 8),
        ("gemma2-windows", "rope.freq_base_swa", 500.0),
        ("gemma2-windows", "attention.scale", 0.5),
        ("gemma2-windows", "rope.scaling.attn_factor", 1.5),
        ("gemma3n", "rope.scaling.factor", 2.0),
        ("gemma3n", "altup.active_idx", 4),
        ("gemma3n", "attention.shared_kv_layers", 2.5),
        ("gemma3n", "activation_sparsity_scale", [1.0]),
        ("gemma4", "attention.scale", 0.5),
        ("gemma4", "rope.dimension_count_swa", 8),
        ("gemma4", "attention.head_count_kv", [2, 1, 1, 2, 2, 1]),
        ("gemma4-shared", "feed_forward_length", [96, 96, 96, 192, 192, 96]),
        ("gemma4-shared", "attention.sliding_window_pattern", [True] * 6),
        ("glm4", "rope.dimension_count", 3),
        ("gpt2", "rope.scaling.factor", 4.0),
        ("gptneox", "attention.head_count_kv", 2),
        ("starcoder", "attention.head_count_kv", 4),
        ("granite", "rope.scaling.finetuned", False),
        ("granite", "attention.key_length", 32),
        ("granite", "expert_count", 4),
        ("hunyuan-dense", "rope.scaling.alpha", 1000.0),
        ("internlm2", "rope.dimension_count", 8),
        ("internlm2", "attention.sliding_window", 8),
        ("qwen", "feed_forward_length", 191),
        ("minicpm3", "rope.dimension_count", 48),
        ("minicpm3", "attention.head_count_kv", 2),
        ("ministral3", "attention.temperature_length", 4096),
        ("ministral3", "rope.scaling.type", "longrope"),
        ("olmo3", "rope.scaling.yarn_attn_factor", 1.5),
        ("olmo3", "attention.sliding_window_pattern", [True] * 5),
        ("olmo2", "attention.clamp_kqv", 8.0),
        ("stablelm", "attention.max_alibi_bias", 8.0),
        ("starcoder2", "attention.sliding_window", 8),
    ],
)
def test_key_that_changes_the_arithmetic_is_refused(
    name: str, key: str, value: CheckpointValue, tmp_path: Path
) -> None:
    case = BY_ID[name]
    _, tensors = floats_of(case)
    header = read_header(write_case(tmp_path / "odd.gguf", case, tensors, {key: value}))
    with pytest.raises(CheckpointError, match=f"'{case.architecture}.{key}'"):
        build_model(header)


def test_baichuan_with_as_many_layers_as_the_13b_model_is_refused(tmp_path: Path) -> None:
    """It has ALiBi, which no key says."""
    config: dict[str, Any] = BY_ID["baichuan"].config | {"num_hidden_layers": 40, "intermediate_size": 32}
    case = replace(BY_ID["baichuan"], config=config)
    _, tensors = floats_of(case)
    metadata: dict[str, CheckpointValue] = {"block_count": 40, "feed_forward_length": 32}
    header = read_header(write_case(tmp_path / "13b.gguf", case, tensors, metadata))
    with pytest.raises(CheckpointError, match="ALiBi"):
        build_model(header)


def test_apertus_without_its_activation_is_refused(tmp_path: Path) -> None:
    case = BY_ID["apertus"]
    _, tensors = floats_of(case)
    keys = {key: value for key, value in case.whole_keys.items() if key != "xielu.beta"}
    header = read_header(write_case(tmp_path / "linear.gguf", replace(case, whole_keys=keys), tensors))
    with pytest.raises(CheckpointError, match=r"'xielu\.beta'"):
        build_model(header)
