"""Files that nobody's converter wrote: refused by the key or the tensor at fault, before a model is made or in the making."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from engines.errors import CheckpointError
from engines.footprint import estimate
from engines.gguf.model import build_model
from engines.gguf.placing import placed
from engines.header import GgufHeader, MetadataValue, read_header
from tests.engines.gguf.families import (
    test_arcee,
    test_bailingmoe,
    test_deepseek2,
    test_gemma3n,
    test_gpt,
    test_granitehybrid,
    test_kimi_linear,
    test_llama_kin,
    test_mamba,
    test_mamba2,
    test_mimo2,
    test_minicpm3,
    test_qwen35,
    test_step35,
)
from tests.engines.gguf.families.helpers_family import Case, floats_of, write_case
from tests.engines.gguf.families.helpers_shapes import planned

MODULES = (
    test_arcee,
    test_bailingmoe,
    test_deepseek2,
    test_gemma3n,
    test_gpt,
    test_granitehybrid,
    test_kimi_linear,
    test_llama_kin,
    test_mamba,
    test_mamba2,
    test_mimo2,
    test_minicpm3,
    test_qwen35,
    test_step35,
)
BY_ID: dict[str, Case] = {case.id: case for module in MODULES for case in module.CASES}

WRONG: dict[str, MetadataValue] = {
    "zero": 0,
    "one": 1,
    "negative": -1,
    "wild": 1 << 63,
    "large": 1_000_000,
    "fraction": 0.5,
    "tiny": 1e-45,
    "huge": 3e38,
    "nan": math.nan,
    "infinite": math.inf,
    "text": "x",
    "flag": True,
}


@pytest.fixture(scope="module")
def header_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GgufHeader]:
    headers: dict[str, GgufHeader] = {}

    def header(name: str) -> GgufHeader:
        if name not in headers:
            path = tmp_path_factory.mktemp("hostile") / f"{name}.gguf"
            headers[name] = read_header(write_case(path, BY_ID[name], floats_of(BY_ID[name])[1]))
        return headers[name]

    return header


def with_key(header: GgufHeader, key: str, value: MetadataValue | None) -> GgufHeader:
    metadata = {each: kept for each, kept in header.metadata.items() if each != key}
    return replace(header, metadata=metadata if value is None else {**metadata, key: value})


def with_shape(header: GgufHeader, name: str, shape: tuple[int, ...] | None) -> GgufHeader:
    tensors = dict(header.tensors)
    info = tensors.pop(name)
    if shape is not None:
        tensors[name] = replace(info, shape=shape, nbytes=4 * math.prod(shape))
    return replace(header, tensors=tensors)


@pytest.mark.parametrize(
    ("name", "key", "value", "named"),
    [
        # Compiled functions and rotary embeddings of mlx-lm's that MLX ends the process or the request for.
        ("bailingmoe", "expert_used_count", 1, "'bailingmoe.expert_used_count' is 1"),
        ("bailingmoe2", "expert_group_count", 8, "'bailingmoe2.expert_group_count' is 8"),
        ("bailingmoe2", "rope.dimension_count", 7, "'bailingmoe2.rope.dimension_count' is 7"),
        # Numbers whose logarithm or reciprocal there is not, or not in float32.
        ("arcee", "rope.freq_base", 1.0, "'arcee.rope.freq_base' is 1.0"),
        ("arcee", "rope.freq_base", 1e-30, "'arcee.rope.freq_base' is 1e-30"),
        ("granitehybrid", "logit_scale", 1e-45, "'granitehybrid.logit_scale' is 1e-45"),
        ("minicpm3", "context_length", 1, "'minicpm3.context_length' is 1"),
        # Sizes that nothing can be made of, and that plans would be as long as.
        ("gpt2", "context_length", 1 << 31, "'gpt2.context_length' is 2147483648"),
        ("arcee", "block_count", 1_000_000, "'arcee.block_count' is 1000000"),
        ("minicpm3", "embedding_length", 1, "minicpm3"),
        # Widths that the stock class does not ask for.
        ("gpt2", "feed_forward_length", 260, "'gpt2.feed_forward_length' is 260"),
        ("gptneox", "feed_forward_length", 260, "'gptneox.feed_forward_length' is 260"),
        # Rows of a fused matrix that would be nobody's.
        ("qwen", "attention.head_count_kv", 1, "'blk.0.attn_qkv.weight' does not fit the metadata"),
        # An old name of a factor, held to the same bounds.
        ("arcee-unscaled", "rope.scale_linear", 1e30, "'arcee.rope.scale_linear' is 1e+30"),
    ],
)
def test_value_is_refused_by_key(
    name: str, key: str, value: MetadataValue, named: str, header_of: Callable[[str], GgufHeader]
) -> None:
    header = with_key(header_of(name), f"{BY_ID[name].architecture}.{key}", value)
    with pytest.raises(CheckpointError) as caught:
        build_model(header)
    assert named in caught.value.message


@pytest.mark.parametrize(
    ("name", "tensor", "shape"),
    [
        ("bailingmoe", "blk.0.attn_q.weight", (4096,)),
        ("bailingmoe", "blk.0.attn_k.weight", (64,)),
        ("kimi-linear", "blk.0.ssm_conv1d_q.weight", (1, 4, 1, 128)),
        ("kimi-linear", "blk.0.ssm_conv1d_q.weight", (512,)),
        ("mamba2", "blk.0.ssm_a", (2, 2)),
        ("mimo2", "blk.1.attn_sinks.weight", None),
        ("mimo2-joined", "blk.0.attn_qkv.weight", (7, 64)),
    ],
)
def test_tensor_is_refused_by_name(
    name: str, tensor: str, shape: tuple[int, ...] | None, header_of: Callable[[str], GgufHeader]
) -> None:
    with pytest.raises(CheckpointError) as caught:
        build_model(with_shape(header_of(name), tensor, shape))
    assert f"'{tensor}'" in caught.value.message


@pytest.mark.parametrize(
    "name",
    [
        "bailingmoe2",
        "deepseek-v3",
        "gemma3n",
        "granitehybrid",
        "kimi-linear",
        "jamba",
        "mamba2",
        "mimo2",
        "minicpm3",
        "qwen35",
        "step35",
    ],
)
def test_any_value_of_any_key_makes_a_plan_or_a_refusal(name: str, header_of: Callable[[str], GgufHeader]) -> None:
    """Of the gateway's own looks at a file, which must not break: plan and table of tensors, and the footprint."""
    header, architecture = header_of(name), BY_ID[name].architecture
    refused = 0
    for key in header.metadata:
        if not key.startswith(f"{architecture}."):
            continue
        for value in (None, *WRONG.values()):
            mutated = with_key(header, key, value)
            for look in (_placed, estimate):
                try:
                    look(mutated)
                except CheckpointError:
                    refused += 1
    assert refused > 50


def _placed(header: GgufHeader) -> None:
    placed(header, *planned(header))


def test_footprint_of_a_model_of_states_alone_needs_no_heads(header_of: Callable[[str], GgufHeader]) -> None:
    header = header_of("mamba2")
    footprint = estimate(with_key(header, "mamba2.attention.head_count", None))
    assert footprint.state_bytes == estimate(header).state_bytes > 0
