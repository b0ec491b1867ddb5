"""Mutated files: whatever the bytes are, the reader answers with a header or a CheckpointError, quickly and in little memory."""

from __future__ import annotations

import contextlib
import struct
import tempfile
import time
import tracemalloc
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.detect import detect
from engines.errors import CheckpointError, GgufFormatError
from engines.footprint import estimate
from engines.header import GgufArray, GgufValueType, read_header, read_safetensors_header
from tests.engines.helpers_gguf_bytes import Tensor, array, array_pair, gguf, pair, small_llama
from tests.engines.helpers_safetensors_bytes import safetensors

Kind = GgufValueType
SEEDS = [
    small_llama(),
    gguf(),
    gguf(
        [
            pair("general.alignment", Kind.UINT32, 64),
            array_pair("words", Kind.STRING, [f"word {i}" for i in range(50)]),
            array_pair("nested", Kind.ARRAY, [array(Kind.STRING, ["a", "b"]), array(Kind.BOOL, [0, 1])]),
            array_pair("floats", Kind.FLOAT64, [0.5] * 9),
        ],
        [Tensor("a", (256, 2), 12), Tensor("b", (32, 2, 1, 3), 8)],
        alignment=64,
    ),
]
SAFETENSORS_SEED = safetensors({"a": ("F32", [2, 3]), "b": ("BF16", [4])}, {"format": "pt"})

# Numbers that parsers stumble over, as the eight bytes of a count or a length.
LENGTHS = [0, 1, 8, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**61, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1]
MUTATION = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 1 << 20), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.integers(0, 1 << 20), st.just(0)),
    st.tuples(st.just("length"), st.integers(0, 1 << 20), st.sampled_from(LENGTHS)),
    st.tuples(st.just("insert"), st.integers(0, 1 << 20), st.sampled_from(LENGTHS)),
    st.tuples(st.just("remove"), st.integers(0, 1 << 20), st.integers(1, 64)),
)
MEMORY_BYTES = 4 << 20  # Python's own objects for a few dozen keys, and the window
SECONDS = 2.0  # a bound on hanging, not on speed: the usual answer takes a millisecond

# Mutations aim at the header, since the weights are never looked at.
HEADER_BYTES = 1400


def mutate(data: bytes, mutations: list[tuple[str, int, int]]) -> bytes:
    for kind, where, value in mutations:
        if not data:
            break
        at = where % min(len(data), HEADER_BYTES)
        if kind == "flip":
            data = data[:at] + bytes([data[at] ^ value]) + data[at + 1 :]
        elif kind == "cut":
            data = data[: where % len(data)]
        elif kind == "length":
            data = data[:at] + struct.pack("<Q", value) + data[at + 8 :]
        elif kind == "insert":
            data = data[:at] + struct.pack("<Q", value) + data[at:]
        else:
            data = data[:at] + data[at + value :]
    return data


def read_everything(path: Path) -> None:
    header = read_header(path)
    for value in header.metadata.values():
        if isinstance(value, GgufArray):
            try:
                value.tolist()
            except GgufFormatError:
                continue
    for tensor in header.tensors.values():
        assert tensor.nbytes > 0
        assert header.parts[0].data_offset <= tensor.offset <= header.file_bytes - tensor.nbytes
    checkpoint = detect(path)
    footprint = estimate(checkpoint)
    assert footprint.static_bytes > 0
    assert footprint.kv_bytes_per_token >= 0


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(seed=st.sampled_from(SEEDS), mutations=st.lists(MUTATION, min_size=1, max_size=4))
def test_header_of_mutated_files(seed: bytes, mutations: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.gguf"
        path.write_bytes(mutate(seed, mutations))
        start = time.process_time()
        tracemalloc.start()
        try:
            read_everything(path)
        except CheckpointError as error:
            assert str(path) in error.message
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < MEMORY_BYTES
        assert time.process_time() - start < SECONDS


@settings(max_examples=100, deadline=None, derandomize=True)
@given(body=st.binary(max_size=300))
def test_header_of_random_bytes_behind_a_good_start(body: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + body)
        with contextlib.suppress(CheckpointError):
            read_everything(path)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(mutations=st.lists(MUTATION, min_size=1, max_size=3))
def test_safetensors_header_of_mutated_files(mutations: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.safetensors"
        path.write_bytes(mutate(SAFETENSORS_SEED, mutations))
        try:
            read_safetensors_header(path)
        except CheckpointError as error:
            assert str(path) in error.message
