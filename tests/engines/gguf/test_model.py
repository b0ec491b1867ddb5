"""``build_model``: what is refused and how it is named, dtypes, progress, and the numbers it reports."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from engines.errors import CheckpointError, UnsupportedModel
from engines.footprint import estimate
from engines.gguf.layers import KQuantEmbedding, KQuantLinear
from engines.gguf.model import build_model
from engines.gguf.writer import CheckpointTensor, CheckpointValue
from engines.header import read_header
from tests.engines.gguf.helpers_tiny import FAMILIES, TinyModel, apart, tiny_gguf, tiny_model

TOKENS = mx.array([[5, 9, 200, 33, 7]])


@pytest.fixture(scope="module")
def llama() -> TinyModel:
    return tiny_model("llama")


def refused(tiny: TinyModel, path: Path, kind: type[CheckpointError], **changes: Any) -> str:
    """The message with which the changed checkpoint is refused."""
    header = read_header(tiny.write(path, **changes))
    with pytest.raises(kind) as caught:
        build_model(header)
    assert type(caught.value) is kind
    assert str(path) in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    "name",
    [
        "token_embd.weight",
        "output_norm.weight",
        "blk.0.attn_q.weight",
        "blk.1.ffn_norm.weight",
        "blk.2.ffn_down.weight",
    ],
)
def test_missing_tensor_is_named(llama: TinyModel, name: str, tmp_path: Path) -> None:
    message = refused(llama, tmp_path / "missing.gguf", CheckpointError, tensors={name: None})
    assert f"tensor '{name}' is missing" in message


@pytest.mark.parametrize("name", ["blk.0.ffn_gate_inp.weight", "v.patch_embd.weight", "blk.1.attn_q_norm.weight"])
def test_left_over_tensor_is_named(llama: TinyModel, name: str, tmp_path: Path) -> None:
    extra: dict[str, CheckpointTensor] = {name: ("F32", np.ones((4, 4), np.float32))}
    assert f"'{name}'" in refused(llama, tmp_path / "extra.gguf", CheckpointError, tensors=extra)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.1.attn_k.weight", (768, 256)),
        ("blk.0.ffn_up.weight", (256, 512)),
        ("output_norm.weight", (255,)),
        ("token_embd.weight", (352, 128)),
        ("blk.0.attn_q.bias", (384,)),
    ],
)
def test_wrong_shape_is_named(llama: TinyModel, name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    tensors: dict[str, CheckpointTensor] = {name: ("F32", np.ones(shape, np.float32))}
    for block in range(3):  # a bias is in all blocks or in none
        if name.endswith(".bias"):
            tensors[f"blk.{block}.attn_q.bias"] = ("F32", np.ones(shape, np.float32))
    message = refused(llama, tmp_path / "shape.gguf", CheckpointError, tensors=tensors)
    assert f"'{name}' is {list(shape)}" in message


def test_bias_in_some_blocks_only_is_named(llama: TinyModel, tmp_path: Path) -> None:
    bias: dict[str, CheckpointTensor] = {"blk.1.attn_q.bias": ("F32", np.ones(768, np.float32))}
    message = refused(llama, tmp_path / "bias.gguf", CheckpointError, tensors=bias)
    assert "'blk.0.attn_q.bias' is missing" in message


@pytest.mark.parametrize("blocks", [2, 4, 1_000_000])
def test_block_count_that_disagrees_with_tensors_is_refused(llama: TinyModel, blocks: int, tmp_path: Path) -> None:
    metadata = {"llama.block_count": blocks}
    message = refused(llama, tmp_path / "blocks.gguf", CheckpointError, metadata=metadata)
    assert "block" in message
    assert str(blocks) in message or "blk.3." in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_group_count", 8),
        ("logit_scale", 0.25),
        ("attention.clamp_kqv", 8.0),
        ("attention.causal", False),
        ("attention.value_length", 64),
        ("attention.scale", 0.5),
        ("attention.sliding_window_pattern", 2),
        ("attention.temperature_scale", 0.1),
        ("rope.dimension_count", 64),
        ("rope.scaling.type", "longrope"),
        ("rope.scaling.attn_factor", 1.5),
        ("some_future_key", "anything"),
    ],
)
def test_key_that_is_not_understood_is_named(
    llama: TinyModel, key: str, value: CheckpointValue, tmp_path: Path
) -> None:
    message = refused(llama, tmp_path / "key.gguf", UnsupportedModel, metadata={f"llama.{key}": value})
    assert f"'llama.{key}'" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 0),
        ("attention.causal", True),
        ("logit_scale", 1.0),
        ("rope.scaling.type", "none"),
        ("rope.scaling.finetuned", False),
        ("feed_forward_length", [512, 512, 512]),
        ("attention.head_count_kv", [3, 3, 3]),
    ],
)
def test_key_that_changes_nothing_is_accepted(
    llama: TinyModel, key: str, value: CheckpointValue, tmp_path: Path
) -> None:
    header = read_header(llama.write(tmp_path / "key.gguf", metadata={f"llama.{key}": value}))
    logits = build_model(header).model(TOKENS)
    assert apart(logits, llama.stock(TOKENS)) < 1e-4


def test_window_pattern_of_gemma3_may_be_an_array(tmp_path: Path) -> None:
    tiny = tiny_model("gemma3")
    metadata = {"gemma3.attention.sliding_window_pattern": [True, True, False]}
    tokens = mx.array([list(range(30))])
    logits = build_model(read_header(tiny.write(tmp_path / "array.gguf", metadata=metadata))).model(tokens)
    assert apart(logits, tiny.stock(tokens)) < 1e-4


def test_values_that_differ_between_layers_are_refused(llama: TinyModel, tmp_path: Path) -> None:
    metadata = {"llama.attention.head_count_kv": [3, 6, 3]}
    message = refused(llama, tmp_path / "layers.gguf", UnsupportedModel, metadata=metadata)
    assert "'llama.attention.head_count_kv' is an array of 3" in message


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("qwen2", "attention.sliding_window", 128),
        ("qwen2", "attention.key_length", 128),
        ("qwen3", "expert_used_count", 8),
        ("gemma3", "final_logit_softcapping", 30.0),
        ("gemma3", "attention.sliding_window_pattern", [0, 1, 1]),
        ("gemma3", "attention.sliding_window_pattern", 4),
        ("phi3", "rope.scaling.type", "linear"),
    ],
)
def test_key_that_a_family_does_not_have_is_refused(
    family: str, key: str, value: CheckpointValue, tmp_path: Path
) -> None:
    metadata: dict[str, CheckpointValue] = {f"{family}.{key}": value}
    if key == "rope.scaling.type":
        metadata[f"{family}.rope.scaling.factor"] = 2.0
    message = refused(tiny_model(family), tmp_path / "key.gguf", UnsupportedModel, metadata=metadata)
    assert f"'{family}.{key}'" in message or "block_count" in message


def test_rope_factors_beside_another_scaling_are_refused(llama: TinyModel, tmp_path: Path) -> None:
    message = refused(
        llama,
        tmp_path / "both.gguf",
        UnsupportedModel,
        metadata={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0},
        tensors={"rope_freqs.weight": ("F32", np.ones(64, np.float32))},
    )
    assert "rope_freqs.weight" in message


def test_rope_factors_of_wrong_length_are_refused(llama: TinyModel, tmp_path: Path) -> None:
    factors: dict[str, CheckpointTensor] = {"rope_freqs.weight": ("F32", np.ones(32, np.float32))}
    assert "rope_freqs.weight" in refused(llama, tmp_path / "short.gguf", CheckpointError, tensors=factors)


def test_one_of_phi3_rope_factors_is_refused(tmp_path: Path) -> None:
    factors: dict[str, CheckpointTensor] = {"rope_factors_long.weight": ("F32", np.ones(24, np.float32))}
    message = refused(tiny_model("phi3"), tmp_path / "one.gguf", CheckpointError, tensors=factors)
    assert "rope_factors_short.weight" in message


def test_rotary_tables_of_early_converters_are_skipped(llama: TinyModel, tmp_path: Path) -> None:
    table: dict[str, CheckpointTensor] = {"blk.0.attn_rot_embd.weight": ("F32", np.ones(64, np.float32))}
    assert build_model(read_header(llama.write(tmp_path / "old.gguf", tensors=table))).context == 512


def test_quant_type_without_a_reader_is_named(llama: TinyModel, tmp_path: Path) -> None:
    blocks = np.zeros((768, 320), np.uint8)
    tensors: dict[str, CheckpointTensor] = {"blk.0.attn_q.weight": ("Q8_1", blocks)}
    message = refused(llama, tmp_path / "iq.gguf", UnsupportedModel, tensors=tensors)
    assert "Q8_1" in message
    assert "blk.0.attn_q.weight" in message


def test_quantised_norm_is_refused(llama: TinyModel, tmp_path: Path) -> None:
    tensors: dict[str, CheckpointTensor] = {"output_norm.weight": ("Q8_0", np.zeros(272, np.uint8))}
    assert "output_norm.weight" in refused(llama, tmp_path / "norm.gguf", UnsupportedModel, tensors=tensors)


def test_more_tokens_than_embedding_rows_are_refused(llama: TinyModel, tmp_path: Path) -> None:
    tensors: dict[str, CheckpointTensor] = {"token_embd.weight": ("F32", np.ones((351, 256), np.float32))}
    message = refused(llama, tmp_path / "tokens.gguf", CheckpointError, tensors=tensors)
    assert "351 rows for 352 tokens" in message


def test_padded_embedding_is_accepted(llama: TinyModel, tmp_path: Path) -> None:
    tensors: dict[str, CheckpointTensor] = {"token_embd.weight": ("F32", np.ones((384, 256), np.float32))}
    built = build_model(read_header(llama.write(tmp_path / "padded.gguf", tensors=tensors)))
    assert built.model(TOKENS).shape == (1, 5, 384)


def test_unknown_architecture_lists_those_there_are(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "quux.gguf", "quux")
    writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=r"'quux' is not supported; supported are .*llama.*, qwen2"):
        build_model(read_header(tmp_path / "quux.gguf"))


def test_split_checkpoint_is_built_from_all_parts(llama: TinyModel, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "split.gguf", "llama", split_max_tensors=8)
    for key, value in llama.metadata.items():
        if isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
    for name, (_, data) in llama.tensors.items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("split-*.gguf"))
    assert len(parts) == 4
    logits = build_model(read_header(parts[0])).model(TOKENS)
    assert apart(logits, llama.stock(TOKENS)) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quant", ["F32", "BF16", "Q4_K"])
def test_half_precision_reaches_logits_and_cache(family: str, quant: str, tmp_path: Path) -> None:
    built = build_model(read_header(tiny_gguf(tmp_path, family, quant)), dtype="bfloat16")
    cache = make_prompt_cache(built.model)
    assert built.dtype == mx.bfloat16
    assert built.model(TOKENS, cache=cache).dtype == mx.bfloat16
    assert {layer.keys.dtype for layer in cache} == {mx.bfloat16}


def test_half_precision_of_factored_rope_reaches_the_cache(tmp_path: Path) -> None:
    factors = {"type": "longrope", "short_factor": [1.0] * 24, "long_factor": [2.0] * 24}
    tiny = tiny_model("phi3", rope_scaling=factors, original_max_position_embeddings=64)
    built = build_model(read_header(tiny.write(tmp_path / "long.gguf")), dtype="float16")
    assert built.model(TOKENS).dtype == mx.float16


def test_unknown_dtype_is_refused(tmp_path: Path) -> None:
    header = read_header(tiny_gguf(tmp_path))
    with pytest.raises(UnsupportedModel, match="'int8' is not supported; supported are float32"):
        build_model(header, dtype="int8")


def test_leaves_hold_blocks_and_nothing_else_is_left(tmp_path: Path) -> None:
    model = build_model(read_header(tiny_gguf(tmp_path, "qwen3", "Q4_K"))).model
    assert isinstance(model.model.embed_tokens, KQuantEmbedding)
    assert isinstance(model.lm_head, KQuantLinear)
    parameters: Any = tree_flatten(model.parameters())
    matrices = {name: value.dtype for name, value in parameters if value.ndim > 1}
    assert len(matrices) == 2 + 3 * 7
    assert set(matrices.values()) == {mx.uint8}


def test_progress_rises_to_one(tmp_path: Path) -> None:
    fractions: list[float] = []
    build_model(read_header(tiny_gguf(tmp_path)), fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[0] > 0
    assert fractions[-1] == 1.0


def test_context_is_limited_but_not_stretched(tmp_path: Path) -> None:
    header = read_header(tiny_gguf(tmp_path))
    assert [build_model(header, context=wanted).context for wanted in (None, 64, 4096)] == [512, 64, 512]


@pytest.mark.parametrize(
    ("family", "metadata"),
    [
        *((family, {}) for family in FAMILIES),
        ("llama", {"llama.attention.sliding_window": 8}),
        ("phi3", {"phi3.attention.sliding_window": 100}),
    ],
)
def test_kv_bytes_equal_footprint_and_caches(family: str, metadata: dict[str, CheckpointValue], tmp_path: Path) -> None:
    header = read_header(tiny_model(family, quant="Q8_0").write(tmp_path / "kv.gguf", metadata=metadata))
    built, footprint = build_model(header), estimate(header)
    assert built.kv_bytes_per_token == footprint.kv_bytes_per_token
    assert built.kv_window_tokens == footprint.kv_window_tokens
    assert built.kv_window_bytes_per_token == footprint.kv_window_bytes_per_token
    cache = make_prompt_cache(built.model)
    built.model(mx.zeros((1, 256), mx.int32), cache=cache)
    built.model(
        mx.zeros((1, 1), mx.int32), cache=cache
    )  # a windowed cache shrinks to its window at the first decode step
    windowed = built.kv_window_tokens * built.kv_window_bytes_per_token
    assert sum(layer.nbytes for layer in cache) == 512 * built.kv_bytes_per_token + windowed
    assert footprint.kv_bytes(257) == 512 * built.kv_bytes_per_token + windowed


def test_building_draws_no_stock_weights(tmp_path: Path) -> None:
    """The stock class draws random matrices, lazily; none may be computed."""
    header = read_header(tiny_gguf(tmp_path, "llama", "Q4_K"))
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    built = build_model(header)
    largest = max(tensor.nbytes for tensor in header.tensors.values())
    held = sum(tensor.nbytes for tensor in header.tensors.values())
    assert mx.get_peak_memory() - before < held + 2 * largest + 64 * 1024
    del built


KEYS = (
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.factor",
    "rope.scaling.type",
)
WILD: tuple[CheckpointValue, ...] = (0, 1, 3, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, -1, True, 0.0, 1e-30, 1e30, "yarn")


@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3"])
def test_wild_values_are_refused_or_run(family: str, tmp_path: Path) -> None:
    tiny = tiny_model(family, quant="Q4_0")
    for key, value in itertools.product(KEYS, WILD):
        header = read_header(tiny.write(tmp_path / "wild.gguf", metadata={f"{family}.{key}": value}))
        try:
            built = build_model(header)
        except CheckpointError as error:
            assert "wild.gguf" in error.message
        else:
            mx.eval(built.model(TOKENS[:, :2], cache=make_prompt_cache(built.model)))
