"""What a checkpoint's publisher recommends, from GGUF metadata and from generation_config.json."""

from __future__ import annotations

import json
import os
from pathlib import Path

import gguf
import pytest

from engines.detect import detect
from engines.errors import CheckpointError
from engines.header import GgufValueType
from gateway.registry.family_defaults import family_layer, unused_family_values
from tests.engines.helpers_gguf_bytes import pair, small_llama
from tests.engines.helpers_safetensors_bytes import safetensors
from tests.gateway.registry.helpers_settings import catalog_of, origins

FLOAT, INT, TEXT = GgufValueType.FLOAT32, GgufValueType.INT32, GgufValueType.STRING


def write_gguf(path: Path, **values: tuple[GgufValueType, object]) -> Path:
    path.write_bytes(small_llama([pair(f"general.sampling.{key}", *value) for key, value in values.items()]))
    return path


def test_gguf_metadata_are_sampling_defaults(tmp_path: Path) -> None:
    file = write_gguf(
        tmp_path / "m.gguf",
        temp=(FLOAT, 0.6), top_p=(FLOAT, 0.95), top_k=(INT, 20), min_p=(FLOAT, 0.05), penalty_repeat=(FLOAT, 1.1),
        mirostat=(INT, 2), penalty_last_n=(INT, 64), sequence=(TEXT, "kt"),
    )  # fmt: skip
    layer = family_layer(detect(file))
    assert layer.values == {
        "sampling.temperature": 0.6, "sampling.top_p": 0.95, "sampling.top_k": 20, "sampling.min_p": 0.05,
        "sampling.repetition_penalty": 1.1,
    }  # fmt: skip
    assert layer.notes["sampling.repetition_penalty"] == "general.sampling.penalty_repeat"


def test_gguf_keys_are_those_that_writers_use() -> None:
    keys = gguf.Keys.General
    assert [keys.SAMPLING_TEMP, keys.SAMPLING_TOP_P, keys.SAMPLING_TOP_K, keys.SAMPLING_MIN_P] == [
        "general.sampling.temp", "general.sampling.top_p", "general.sampling.top_k", "general.sampling.min_p",
    ]  # fmt: skip
    assert keys.SAMPLING_PENALTY_REPEAT == "general.sampling.penalty_repeat"


def test_gguf_values_out_of_range_are_not_used_and_told(tmp_path: Path) -> None:
    file = write_gguf(
        tmp_path / "m.gguf",
        temp=(FLOAT, float("nan")), top_p=(TEXT, "high"), top_k=(INT, -1), min_p=(FLOAT, 0.25), penalty_repeat=(INT, 1),
    )  # fmt: skip
    checkpoint = detect(file)
    assert family_layer(checkpoint).values == {"sampling.min_p": 0.25, "sampling.repetition_penalty": 1}
    told = unused_family_values(checkpoint)
    assert [line.split(" is ")[0] for line in told] == [f"general.sampling.{key}" for key in ("temp", "top_p", "top_k")]
    assert "general.sampling.top_k is -1: expected `int` >= 0; not used" in told


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "model.safetensors").write_bytes(safetensors({"a.weight": ("F32", [2, 2])}))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
    return tmp_path


def test_generation_config_beside_safetensors_is_the_same(directory: Path) -> None:
    config = {
        "temperature": 0.6,
        "top_k": 20,
        "repetition_penalty": 1.05,
        "do_sample": True,
        "max_length": 9,
        "top_p": 3,
    }
    (directory / "generation_config.json").write_text(json.dumps(config))
    checkpoint = detect(directory)
    assert family_layer(checkpoint).values == {
        "sampling.temperature": 0.6, "sampling.top_k": 20, "sampling.repetition_penalty": 1.05,
    }  # fmt: skip
    assert unused_family_values(checkpoint) == ["generation_config.json: top_p is 3: expected `float` <= 1.0; not used"]
    # A checkpoint that this version cannot run has them all the same.
    catalog = catalog_of(directory / "registry.yaml", models=[{"id": "m", "source": str(directory)}])
    assert catalog.resolve("m").error is not None
    assert origins(catalog, "m")["sampling.top_k"] == (20, "family defaults (generation_config.json: top_k)")


def test_generation_config_that_is_missing_or_damaged(directory: Path) -> None:
    assert family_layer(detect(directory)).values == {}
    for content in ("{", "[]", "[" * 100_000, " " * (1024**2 + 1)):
        (directory / "generation_config.json").write_text(content)
        with pytest.raises(CheckpointError, match=r"generation_config\.json"):
            family_layer(detect(directory))


def test_metadata_that_changed_on_disk_are_read_again(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", top_k=(INT, 20))
    catalog = catalog_of(
        tmp_path / "registry.yaml", profiles={"p": {"system": "s"}}, models=[{"id": "m", "source": "m.gguf"}]
    )
    assert [catalog.resolve(name).request.sampling for name in ("m", "m@p")] == [{"top_k": 20}] * 2
    write_gguf(file, top_k=(INT, 30))
    os.utime(file, ns=(1, 1))  # its size is the same
    assert [catalog.resolve(name).request.sampling for name in ("m", "m@p")] == [{"top_k": 30}] * 2
