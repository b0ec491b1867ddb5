"""Footprints worked out from headers: static bytes, KV a token, windows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engines.detect import detect
from engines.encoders.families import blueprint_of
from engines.encoders.hf_config import HfConfig
from engines.errors import GgufFormatError, UnsupportedModel
from engines.footprint import TOKENIZER_BYTES, Footprint, estimate
from engines.ggml_types import GgmlType
from engines.header import GgufHeader, GgufValueType, SafetensorsHeader, read_header
from tests.engines.encoders.helpers_tiny_encoders import write_tiny
from tests.engines.helpers_gguf_bytes import Tensor, array_pair, gguf, pair
from tests.engines.helpers_safetensors_bytes import safetensors

Kind = GgufValueType
NUMBERS = {
    "block_count": 6,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "context_length": 4096,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}


def header_of(
    directory: Path, architecture: str = "llama", *extra: bytes, without: str = "", **changes: int
) -> GgufHeader:
    numbers = {**NUMBERS, **{key.replace("__", "."): value for key, value in changes.items()}}
    pairs = [
        pair("general.architecture", Kind.STRING, architecture),
        *(pair(f"{architecture}.{key}", Kind.UINT32, value) for key, value in numbers.items() if key != without),
        array_pair("tokenizer.ggml.tokens", Kind.STRING, ["a", "b", "c"]),
        *extra,
    ]
    tensors = [Tensor(f"blk.{layer}.attn_q.weight", (64, 64), GgmlType.Q4_0) for layer in range(6)]
    tensors += [Tensor("output_norm.weight", (64,)), Tensor("half.weight", (64,), GgmlType.F16)]
    path = directory / "m.gguf"
    path.write_bytes(gguf(pairs, tensors))
    return read_header(path)


def test_footprint_of_full_attention(tmp_path: Path) -> None:
    footprint = estimate(header_of(tmp_path))
    matrices = 6 * 64 * 64 // 32 * 18
    vectors = 2 * 64 * 4  # F16 vectors become float32 too
    assert footprint.static_bytes == matrices + vectors + 3 * TOKENIZER_BYTES
    assert footprint.kv_bytes_per_token == 6 * 2 * (16 + 16) * 4
    assert (footprint.kv_window_tokens, footprint.kv_window_bytes_per_token) == (0, 0)
    assert footprint.context == 4096
    assert footprint.transient_bytes > 512 * 3 * 128 * 4


def test_footprint_counts_merges_among_the_tokenizers_tables(tmp_path: Path) -> None:
    plain = estimate(header_of(tmp_path)).static_bytes
    merges = array_pair("tokenizer.ggml.merges", Kind.STRING, ["a b", "b c"])
    assert estimate(header_of(tmp_path, "llama", merges)).static_bytes == plain + 2 * TOKENIZER_BYTES


def test_footprint_in_half_precision(tmp_path: Path) -> None:
    header = header_of(tmp_path)
    assert estimate(header, float_bytes=2).kv_bytes_per_token == estimate(header).kv_bytes_per_token // 2


def test_footprint_context_can_be_set(tmp_path: Path) -> None:
    assert estimate(header_of(tmp_path), context=100).context == 100


def test_footprint_head_widths_and_layers_of_their_own(tmp_path: Path) -> None:
    widths = (pair("llama.attention.key_length", Kind.UINT32, 32), pair("llama.attention.value_length", Kind.UINT32, 8))
    kv_heads = array_pair("llama.attention.head_count_kv", Kind.UINT32, [2, 1, 0, 2, 1, 0])
    footprint = estimate(header_of(tmp_path, "llama", *widths, kv_heads, without="attention.head_count_kv"))
    assert footprint.kv_bytes_per_token == 6 * (32 + 8) * 4


def test_footprint_without_kv_heads_has_one_a_head(tmp_path: Path) -> None:
    footprint = estimate(header_of(tmp_path, without="attention.head_count_kv"))
    assert footprint.kv_bytes_per_token == 6 * 4 * 32 * 4


def test_footprint_gemma3_windows(tmp_path: Path) -> None:
    a_layer = 2 * 32 * 4
    footprint = estimate(header_of(tmp_path, "gemma3", attention__sliding_window=512))
    assert footprint.kv_bytes_per_token == a_layer
    assert (footprint.kv_window_tokens, footprint.kv_window_bytes_per_token) == (512, 5 * a_layer)


def test_footprint_gemma3_window_patterns(tmp_path: Path) -> None:
    a_layer = 2 * 32 * 4
    key = "gemma3.attention.sliding_window_pattern"
    footprint = estimate(header_of(tmp_path, "gemma3", pair(key, Kind.UINT32, 2), attention__sliding_window=512))
    assert footprint.kv_bytes_per_token == 3 * a_layer
    array = array_pair(key, Kind.BOOL, [1, 1, 0, 0, 0, 0])
    footprint = estimate(header_of(tmp_path, "gemma3", array, attention__sliding_window=512))
    assert footprint.kv_bytes_per_token == 4 * a_layer


@pytest.mark.parametrize(("architecture", "windowed"), [("llama", 6), ("phi3", 6), ("qwen2", 0), ("qwen3", 0)])
def test_footprint_windows_on_every_layer(architecture: str, windowed: int, tmp_path: Path) -> None:
    a_layer = 2 * 32 * 4
    footprint = estimate(header_of(tmp_path, architecture, attention__sliding_window=512))
    assert footprint.kv_window_bytes_per_token == windowed * a_layer
    assert footprint.kv_bytes_per_token == (6 - windowed) * a_layer


def test_footprint_window_as_wide_as_the_context_is_none(tmp_path: Path) -> None:
    assert estimate(header_of(tmp_path, "phi3", attention__sliding_window=4096)).kv_window_tokens == 0


def test_kv_bytes_round_up_to_cache_steps_and_stop_at_the_window() -> None:
    footprint = Footprint(
        static_bytes=0,
        kv_bytes_per_token=10,
        transient_bytes=0,
        context=4096,
        kv_window_tokens=512,
        kv_window_bytes_per_token=3,
    )
    assert footprint.kv_bytes(0) == 0
    assert footprint.kv_bytes(1) == 256 * 13
    assert footprint.kv_bytes(512) == 512 * 13
    assert footprint.kv_bytes(513) == 768 * 10 + 512 * 3
    assert footprint.kv_bytes(513, rows=3) == 3 * footprint.kv_bytes(513)


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count"])
def test_footprint_names_the_missing_key(key: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=rf"the metadata has no llama.{key}"):
        estimate(header_of(tmp_path, without=key))


@pytest.mark.parametrize(
    ("extra", "without", "message"),
    [
        (pair("llama.block_count", Kind.UINT32, 2**20), "block_count", "block_count is 1048576, with 8 tensors"),
        (pair("llama.block_count", Kind.UINT32, 0), "block_count", "block_count is 0"),
        (pair("llama.attention.key_length", Kind.INT32, -1), "", r"key_length is -1; from 0 to"),
        (
            pair("llama.attention.head_count_kv", Kind.UINT64, 2**63),
            "attention.head_count_kv",
            "head_count_kv is 9223372",
        ),
        (
            array_pair("llama.attention.head_count_kv", Kind.UINT32, [1, 2]),
            "attention.head_count_kv",
            r"head_count_kv' has 2 elements where 6 are needed",
        ),
        (
            array_pair("llama.attention.head_count_kv", Kind.FLOAT32, [1.0] * 6),
            "attention.head_count_kv",
            "is an array of FLOAT32, not of int",
        ),
        (pair("llama.embedding_length", Kind.STRING, "x"), "embedding_length", r"is 'x', not an integer"),
    ],
    ids=["many layers", "no layers", "negative", "overflow", "short array", "floats", "text"],
)
def test_footprint_of_wild_numbers(extra: bytes, without: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(GgufFormatError, match=message):
        estimate(header_of(tmp_path, "llama", extra, without=without))


def test_footprint_of_safetensors_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a": ("F32", [2, 3])}))
    with pytest.raises(UnsupportedModel, match="safetensors"):
        estimate(detect(tmp_path))


def test_footprint_of_an_encoder_has_room_on_cuda_for_a_batch_that_keeps_it_busy(tmp_path: Path) -> None:
    checkpoint = detect(write_tiny(tmp_path / "bert", "bert"), "embedding")
    assert isinstance(checkpoint.header, SafetensorsHeader)
    shape = blueprint_of(checkpoint.header, HfConfig.read(tmp_path / "bert")).shape
    plain, cuda = (estimate(checkpoint, float_bytes=2, cuda=cuda).state_bytes for cuda in (False, True))
    assert plain == shape.row_bytes(64, 2)
    rows = shape.free_places // 64  # of a batch, which has half of a grant of four
    assert rows * shape.row_bytes(64, 2, cuda=True) == 2 * cuda


def test_footprint_of_smollm2_kv(smollm2_path: Path) -> None:
    assert estimate(read_header(smollm2_path)).kv_bytes_per_token == 30 * 3 * (64 + 64) * 4


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the CPU's memory probe needs Linux")
@pytest.mark.parametrize("model", ["smollm2_path", "gemma_path"])
def test_footprint_kv_is_within_a_tenth_of_full_caches(model: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(model)
    footprint = estimate(read_header(path))
    contexts = (1024, 4096)
    command = [sys.executable, "-m", "tests.engines.helpers_kv_cache", str(path), *map(str, contexts)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout)
    assert found["filled"] == found["real"]
    for context in contexts:
        measured = found[str(context)]
        assert footprint.kv_bytes(context) == pytest.approx(measured["nbytes"], rel=0.1)
        assert footprint.kv_bytes(context) == pytest.approx(measured["held"], rel=0.1)
        assert measured["reading"] <= footprint.kv_bytes(context) + footprint.transient_bytes
