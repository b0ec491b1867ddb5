"""Whole files: metadata, data, memory by slabs, and refusals."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import gguf
import numpy as np
import pytest

from engines.detect import detect
from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.quantise import mixed_model, quantise, quantise_file, tensor_types
from engines.header import GgufArray, GgufHeader, read_header
from tests.engines.gguf.helpers_tiny import tiny_gguf


def tensors(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def metadata(header: GgufHeader) -> dict[str, object]:
    return {key: value.tolist() if isinstance(value, GgufArray) else value for key, value in header.metadata.items()}


@pytest.mark.parametrize("mix", ["Q4_K_M", "Q2_K", "Q8_0", "BF16"])
def test_file_has_the_blocks_of_its_mix_and_all_else_as_it_was(mix: str, tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path, "llama", "F32")
    target = quantise_file(source, tmp_path / "target.gguf", mix)
    before, after = read_header(source), read_header(target)
    types = tensor_types(mix, mixed_model(before), {name: info.shape for name, info in before.tensors.items()})
    assert types and len(types) < len(before.tensors)
    old, new = tensors(source), tensors(target)
    assert list(new) == list(old)
    for name, tensor in new.items():
        kind = types.get(name, before.tensors[name].type)
        assert tensor.tensor_type.name == kind.name
        expected = quantise(old[name].data, kind.name) if name in types else old[name].data
        assert tensor.data.tobytes() == expected.tobytes()
    numbers = {"Q4_K_M": 15, "Q2_K": 10, "Q8_0": 7, "BF16": 32}
    assert metadata(after) == metadata(before) | {"general.file_type": numbers[mix]}
    assert detect(target).unsupported is None


def test_file_is_written_in_slabs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_gguf(tmp_path, "qwen2", "F32")
    whole = quantise_file(source, tmp_path / "whole.gguf", "Q4_K_M", threads=1)
    monkeypatch.setattr("engines.gguf.quantise.checkpoint.SLAB_WEIGHTS", 10_000)  # 39 rows of 256
    monkeypatch.setattr("engines.gguf.quantise.checkpoint.COPY_BYTES", 1000)
    slabs = quantise_file(read_header(source), tmp_path / "slabs.gguf", "Q4_K_M", threads=1)
    assert slabs.read_bytes() == whole.read_bytes()


def test_file_of_a_split_set_is_one_file(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path, "llama", "F32")
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(tmp_path / "set.gguf", "llama", split_max_tensors=10)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kinds = field.types
            writer.add_key_value(key, field.contents(), kinds[0], sub_type=kinds[1] if len(kinds) > 1 else None)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first = min(tmp_path.glob("set-00001-of-*.gguf"))
    parts = read_header(first)
    assert len(parts.parts) > 1
    target = quantise_file(first, tmp_path / "target.gguf", "Q5_K_S")
    header = read_header(target)
    assert len(header.parts) == 1
    assert not any(key.startswith("split.") for key in header.metadata)
    expected = tensors(quantise_file(source, tmp_path / "expected.gguf", "Q5_K_S"))
    for name, tensor in tensors(target).items():
        assert tensor.data.tobytes() == expected[name].data.tobytes()


def test_file_that_is_quantised_is_refused_unless_allowed(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path, "llama", "Q8_0")
    with pytest.raises(UnsupportedModel, match=r"tensor token_embd.weight is Q8_0 already"):
        quantise_file(source, tmp_path / "target.gguf", "Q4_K_M")
    assert list(tmp_path.iterdir()) == [source]
    target = quantise_file(source, tmp_path / "target.gguf", "Q4_K_M", requantise=True)
    info = read_header(source).tensors["blk.1.ffn_up.weight"]
    stored = tensors(source)[info.name]
    weights = gguf.quants.dequantize(stored.data, stored.tensor_type)
    assert tensors(target)[info.name].data.tobytes() == quantise(weights, "Q4_K").tobytes()


def test_file_with_a_weight_that_is_not_finite_is_refused_by_tensor(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path, "llama", "F32")
    info = read_header(source).tensors["blk.1.ffn_up.weight"]
    with source.open("r+b") as file:
        file.seek(info.offset + 4 * 700)
        file.write(np.float32(np.nan).tobytes())
    with pytest.raises(CheckpointError, match=r"blk.1.ffn_up.weight cannot be Q4_K, in rows 0 to 511: .* not finite"):
        quantise_file(source, tmp_path / "target.gguf", "Q4_K_M")
    assert list(tmp_path.iterdir()) == [source]


def test_file_cannot_replace_its_source(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path, "llama", "F32")
    before = source.read_bytes()
    with pytest.raises(CheckpointError, match="name another target"):
        quantise_file(source, source, "Q4_K_M")
    assert source.read_bytes() == before


def test_file_that_changed_since_its_header_was_read_is_refused(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path, "llama", "F32")
    header = read_header(source)
    with source.open("ab") as file:
        file.write(bytes(32))
    with pytest.raises(CheckpointError, match="has changed"):
        quantise_file(header, tmp_path / "target.gguf", "Q4_K_M")
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("name", ["no/such/folder.gguf", "folder", "pipe", "x" * 250, "x" * 300, "a\0b.gguf"])
def test_file_that_cannot_be_written_is_refused_and_nothing_is_left(name: str, tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path, "llama", "F32")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"cannot be written|can be written|is not a file"):
        quantise_file(source, tmp_path / name, "Q4_K_M")
    assert sorted(tmp_path.iterdir()) == before


def test_file_for_which_there_is_no_room_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    source = tiny_gguf(tmp_path, "llama", "F32")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
        with pytest.raises(CheckpointError, match=r"target\.gguf cannot be written: File too large"):
            quantise_file(source, tmp_path / "target.gguf", "Q4_K_M")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == [source]
