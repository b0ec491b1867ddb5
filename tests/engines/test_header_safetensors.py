"""safetensors headers: one file, shards, and what is refused."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from engines.errors import CheckpointError
from engines.header import content_key, read_safetensors_header
from tests.engines.helpers_safetensors_bytes import raw, safetensors


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> bytes:
    return json.dumps({"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()


def test_safetensors_header_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors({"a": ("F32", [2, 3]), "scalar": ("F32", []), "none": ("F32", [0])}, {"format": "pt"}))
    header = read_safetensors_header(path)
    tensor = header.tensors["a"]
    assert (tensor.dtype, tensor.shape, tensor.count, tensor.nbytes) == ("F32", (2, 3), 6, 24)
    assert tensor.offset == header.files[0].data_offset
    assert header.tensors["scalar"].count == 1
    assert header.tensors["none"].nbytes == 0
    assert header.metadata == {"format": "pt"}
    assert header.paths == (str(path),)
    assert len(content_key(header)) == 64
    assert content_key(path) == content_key(header)


def test_safetensors_header_of_shards(tmp_path: Path) -> None:
    (tmp_path / "model-1.safetensors").write_bytes(safetensors({"a": ("F16", [2])}))
    (tmp_path / "model-2.safetensors").write_bytes(safetensors({"b": ("F16", [3])}))
    (tmp_path / "unrelated.safetensors").write_bytes(safetensors({"z": ("F16", [3])}))
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    header = read_safetensors_header(tmp_path)
    assert [(tensor.name, tensor.file) for tensor in header.tensors.values()] == [("a", 0), ("b", 1)]
    assert header.file_bytes == sum((tmp_path / f"model-{number}.safetensors").stat().st_size for number in (1, 2))
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"model-2.safetensors: named in model.safetensors.index.json, but missing"
    ):
        read_safetensors_header(tmp_path)


def test_safetensors_directory_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no safetensors files"):
        read_safetensors_header(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(safetensors({"a": ("F16", [2])}))
    (tmp_path / "b.safetensors").write_bytes(safetensors({"a": ("F16", [2])}))
    with pytest.raises(CheckpointError, match=r"b.safetensors: tensor 'a' is also in .*a.safetensors"):
        read_safetensors_header(tmp_path)


@pytest.mark.parametrize(
    "weight_map", [None, [], {"a": 1}, {"a": "../secret.safetensors"}, {"a": "/etc/passwd"}], ids=repr
)
def test_safetensors_index_that_leads_astray(weight_map: object, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError, match=r"weight_map is missing|outside its directory"):
        read_safetensors_header(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes; not a safetensors file"),
        (b"1234567", "7 bytes; not a safetensors file"),
        (b"\xff" * 8 + b"{}", "a header of 18446744073709551615 bytes is announced"),
        (raw(b"{}")[:-1], "a header of 2 bytes is announced; the file has 1 left"),
        (raw(b"{"), "not a JSON object"),
        (raw(b"[]"), "not a JSON object"),
        (raw(b"\xff\xfe"), "not a JSON object"),
        (raw(b"[" * 100_000), "not a JSON object"),
        (raw(b'{"a":1,"a":1}'), "a name comes twice"),
        (raw(b'{"t":' + b"9" * 5000 + b"}"), "not a JSON object"),
        (raw(b'{"__metadata__":{"a":1}}'), "__metadata__ does not map strings to strings"),
        (raw(b'{"t":3}'), "tensor 't' has an entry that is not an object"),
        (raw(entry("F31"), bytes(8)), "is of dtype 'F31', which is not known"),
        (raw(entry(shape=[-2]), bytes(8)), r"has the shape \[-2\]"),
        (raw(entry(shape=[True, 2]), bytes(8)), r"has the shape \[True, 2\]"),
        (raw(entry(shape=[2**63]), bytes(8)), "has the shape"),
        (raw(entry(offsets=[8, 0]), bytes(8)), r"has the data_offsets \[8, 0\]"),
        (raw(entry(offsets=[0, 4, 8]), bytes(8)), "has the data_offsets"),
        (raw(entry(offsets=[0, 4]), bytes(8)), "does not take the 4 bytes"),
        (raw(entry(), bytes(7)), r"the tensors end at byte \d+, the file at \d+ \(an incomplete download\?\)"),
        (raw(entry(), bytes(9)), r"the tensors end at byte \d+, the file at \d+$"),
        (raw(entry(offsets=[8, 16]), bytes(16)), "tensor 't' leaves a gap before it"),
        (
            raw(
                b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}',
                bytes(6),
            ),
            "tensor 'b' overlaps the tensor before it",
        ),
    ],
    ids=itertools.count(),
)
def test_safetensors_header_refuses(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        read_safetensors_header(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert re.search(message, caught.value.message), caught.value.message


def test_safetensors_header_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        read_safetensors_header(tmp_path / "nothing.safetensors")
