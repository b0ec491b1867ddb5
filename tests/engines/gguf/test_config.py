"""Hyperparameters: types, ranges, and that no key goes unread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.config import Hyperparameters
from engines.header import MetadataValue, read_header
from tests.engines.gguf.helpers_tiny import tiny_model


def parameters(**values: MetadataValue) -> Hyperparameters:
    metadata = {f"llama.{key}": value for key, value in values.items()}
    return Hyperparameters("model.gguf", "llama", metadata)


def test_values_are_read() -> None:
    read = parameters(heads=9, base=1e5, whole=7, kind="yarn")
    assert (read.integer("heads"), read.number("base"), read.number("whole")) == (9, 1e5, 7.0)
    assert read.text("kind", "none") == "yarn"
    assert (read.integer("absent", 4), read.number("absent", 2.5), read.text("absent", "none")) == (4, 2.5, "none")
    read.finish()


def test_missing_key_is_named() -> None:
    for read in (Hyperparameters.integer, Hyperparameters.number):
        with pytest.raises(CheckpointError, match=r"model\.gguf: metadata key 'llama\.heads' is missing"):
            read(parameters(), "heads")


@pytest.mark.parametrize("value", ["9", True, 9.0, 0, -1, 1 << 21])
def test_impossible_integer_is_named(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"'llama\.heads' is "):
        parameters(heads=value).integer("heads")


@pytest.mark.parametrize("value", ["9", True, 0.0, -1.0, float("nan"), float("inf")])
def test_impossible_number_is_named(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"'llama\.base' is "):
        parameters(base=value).number("base")


def test_text_of_another_type_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"'llama\.kind' is 3, not a string"):
        parameters(kind=3).text("kind", "none")


def test_expected_value_may_be_absent_neutral_or_equal() -> None:
    for values in ({}, {"attention.scale": 0.0}, {"attention.scale": 0.125}):
        parameters(**values).expect("attention.scale", 0.125)
    with pytest.raises(UnsupportedModel, match=r"'llama\.attention\.scale' is 0\.5; only 0\.125 is supported"):
        parameters(**{"attention.scale": 0.5}).expect("attention.scale", 0.125)


def test_unread_key_is_refused() -> None:
    read = parameters(heads=9, novelty=1)
    read.integer("heads")
    with pytest.raises(UnsupportedModel, match=r"'llama\.novelty' is 1; that is not understood"):
        read.finish()


def test_neutral_value_is_accepted_and_another_refused() -> None:
    parameters(expert_count=0, vocab_size=32000).finish()
    with pytest.raises(UnsupportedModel, match=r"'llama\.expert_count' is 8"):
        parameters(expert_count=8).finish()


def test_keys_of_other_prefixes_are_nobodys_business() -> None:
    metadata: dict[str, MetadataValue] = {"general.name": "x", "tokenizer.ggml.pre": "y", "quantize.imatrix.file": "z"}
    Hyperparameters("model.gguf", "llama", metadata).finish()


def test_old_block_layouts_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="quantization_version is 1"):
        Hyperparameters("model.gguf", "llama", {"general.quantization_version": 1}).finish()


def test_array_of_equal_values_is_one_value(tmp_path: Path) -> None:
    header = read_header(tiny_model("llama").write(tmp_path / "x.gguf", metadata={"llama.same": [4, 4, 4]}))
    assert Hyperparameters(header.path, "llama", header.metadata).integer("same") == 4


def test_array_shorter_than_the_layers_is_named(tmp_path: Path) -> None:
    header = read_header(tiny_model("llama").write(tmp_path / "x.gguf", metadata={"llama.pattern": [1, 0]}))
    read = Hyperparameters(header.path, "llama", header.metadata)
    assert read.integers("pattern", 2) == [1, 0]
    assert read.integers("absent", 2) is None
    with pytest.raises(CheckpointError, match="has 2 elements for 3 layers"):
        read.integers("pattern", 3)


def test_a_value_a_layer_comes_from_an_array_or_from_one_value(tmp_path: Path) -> None:
    path = tiny_model("llama").write(tmp_path / "heads.gguf", metadata={"llama.attention.head_count_kv": [3, 0, 6]})
    read = Hyperparameters(str(path), "llama", read_header(path).metadata)
    assert read.per_layer("attention.head_count_kv", 3) == [3, 0, 6]
    assert read.per_layer("attention.head_count", 3) == [6, 6, 6]
    assert read.per_layer("absent", 2, 4) == [4, 4]
    with pytest.raises(CheckpointError, match=r"'llama\.attention\.head_count_kv' has a 0; from 1 to "):
        read.per_layer("attention.head_count_kv", 3, least=1)


def test_numbers_of_either_sign_and_flags() -> None:
    read = parameters(scale=-0.5, on=True)
    assert (read.any_number("scale", 1.0), read.any_number("absent", 1.0)) == (-0.5, 1.0)
    assert (read.flag("on", False), read.flag("absent", False)) == (True, False)
    with pytest.raises(CheckpointError, match=r"'llama\.scale' is nan; 0, or from "):
        parameters(scale=float("nan")).any_number("scale", 1.0)
    with pytest.raises(CheckpointError, match=r"'llama\.on' is 1, not true or false"):
        parameters(on=1).flag("on", False)
