"""GGUF files that are damaged or made to do harm: each is refused with what is wrong and where."""

from __future__ import annotations

import os
import re
import time
import tracemalloc
from pathlib import Path

import pytest

from engines.errors import GgufFormatError, UnsupportedModel
from engines.ggml_types import GgmlType
from engines.gguf_reader import MAX_ARRAYS, MAX_NESTING, MAX_STRINGS
from engines.header import MAX_ENTRIES, GgufArray, GgufValueType, read_header
from tests.engines.helpers_gguf_bytes import (
    WHOLE_LLAMA,
    Tensor,
    array,
    array_pair,
    gguf,
    pair,
    small_llama,
    string,
    u32,
    u64,
)

Kind = GgufValueType
HUGE = 2**64 - 1


def nested(depth: int) -> bytes:
    value = array(Kind.UINT8, [1])
    for _ in range(depth - 1):
        value = array(Kind.ARRAY, [value])
    return value


def typed(key: str, payload: bytes) -> bytes:
    return string(key) + payload


T = Tensor("t", (32,))

BAD_FILES: dict[str, tuple[bytes, str]] = {
    # what the file starts with
    "empty": (b"", "the file is empty at byte 0"),
    "one byte": (b"G", r"not a GGUF file: it starts with b'G', not b'GGUF' at byte 0"),
    "wrong magic": (gguf(magic=b"GGML"), r"not a GGUF file: it starts with b'GGML', not b'GGUF' at byte 0"),
    "version 0": (gguf(version=0), "GGUF version 0 is not known; versions 2 and 3 are at byte 4"),
    "version 1": (gguf(version=1), "GGUF version 1 is not read any more: convert the model again"),
    "version 4": (gguf(version=4), "GGUF version 4 is not known"),
    "big-endian": (gguf(version=0x03000000), r"a big-endian GGUF file \(version 3\)"),
    "only a magic": (b"GGUF", "the file ends within the version at byte 4"),
    # counts
    "tensor count overflows": (
        gguf(tensor_count=HUGE),
        f"{HUGE} tensors are announced, but the file has .* left at byte 8",
    ),
    "pair count overflows": (gguf(pair_count=HUGE), f"{HUGE} metadata pairs are announced, .* at byte 16"),
    "pair count too high": (
        gguf([pair("k", Kind.UINT8, 1)], pair_count=2),
        "the file ends within|metadata key 1 is empty",
    ),
    "tensor count too high": (small_llama()[:8] + u64(len(WHOLE_LLAMA) + 1) + small_llama()[16:], "tensor|length"),
    # keys and values
    "key longer than the file": (
        gguf([u64(10**6) + b"k"]),
        "metadata key 0 is said to take 1000000 bytes, but .* at byte 24",
    ),
    "key length overflows": (gguf([u64(HUGE) + b"k" * 20]), f"metadata key 0 is said to take {HUGE} bytes"),
    "key too long": (
        gguf([pair("k" * 65536, Kind.UINT8, 1)]),
        "metadata key 0 takes 65536 bytes; at most 65535 are allowed",
    ),
    "key empty": (gguf([pair("", Kind.UINT8, 1)]), "metadata key 0 is empty at byte 24"),
    "key not UTF-8": (gguf([pair(b"ke\xff", Kind.UINT8, 1)]), "metadata key 0 is not UTF-8 at byte 34"),
    "key twice": (gguf([pair("k", Kind.UINT8, 1)] * 2), "the metadata key 'k' comes twice at byte 38"),
    "value type unknown": (
        gguf([typed("k", u32(13) + bytes(8))]),
        "the type of 'k' is 13, which is no value type at byte 33",
    ),
    "value missing": (gguf([pair("k", Kind.UINT64, 1)])[:41], "the file ends within the value of 'k' at byte 37"),
    "value not UTF-8": (gguf([pair("k", Kind.STRING, b"a\xc3(")]), "the value of 'k' is not UTF-8 at byte 46"),
    "value surrogate": (gguf([pair("k", Kind.STRING, b"\xed\xa0\x80")]), "the value of 'k' is not UTF-8"),
    "value length overflows": (
        gguf([typed("k", u32(8) + u64(HUGE))]),
        f"the value of 'k' is said to take {HUGE} bytes",
    ),
    "bool 2": (gguf([pair("k", Kind.BOOL, 2)]), r"the value of 'k' is 2, not a bool \(0 or 1\) at byte 37"),
    # arrays
    "array type unknown": (
        gguf([typed("k", u32(9) + u32(99) + u64(0))]),
        "the element type of 'k' is 99, which is no value",
    ),
    "array count overflows": (gguf([typed("k", u32(9) + u32(10) + u64(HUGE))]), f"'k' is said to have {HUGE} elements"),
    "array count times size wraps": (gguf([typed("k", u32(9) + u32(10) + u64(2**61))]), "'k' is said to have"),
    "array of strings too long": (gguf([typed("k", u32(9) + u32(8) + u64(10))]), "'k' is said to have 10 elements"),
    "array string past the end": (
        gguf([typed("k", u32(9) + u32(8) + u64(2) + string("a") + u64(10**9))]),
        "string 1 of 'k' goes past the end of the file at byte 58",
    ),
    "array string length overflows": (
        gguf([typed("k", u32(9) + u32(8) + u64(1) + u64(HUGE))]),
        "string 0 of 'k' goes past the end of the file at byte 49",
    ),
    "array nested too deep": (gguf([typed("k", u32(9) + nested(MAX_NESTING + 1))]), "nested deeper than 4"),
    "array nested very deep": (gguf([typed("k", u32(9) + nested(5000))]), "nested deeper than 4"),
    "array inner count overflows": (
        gguf([typed("k", u32(9) + u32(9) + u64(1) + u32(8) + u64(HUGE))]),
        f"'k' is said to have {HUGE} elements",
    ),
    # alignment
    **{
        f"alignment {value}": (
            gguf([pair("general.alignment", Kind.UINT32, value)], [T]),
            f"general.alignment is {value}; a power of two from 8 to 1048576 is needed",
        )
        for value in (0, 1, 4, 12, 33, 2**21, 2**31)
    },
    "alignment a string": (
        gguf([pair("general.alignment", Kind.STRING, "32")]),
        "general.alignment is '32', not an integer",
    ),
    "alignment a bool": (gguf([pair("general.alignment", Kind.BOOL, 1)]), "general.alignment is True, not an integer"),
    # the tensor table
    "tensor name empty": (gguf([], [Tensor("", (32,))]), "a tensor name is empty at byte 24"),
    "tensor name not UTF-8": (gguf([], [Tensor(b"\xff", (32,))]), "a tensor name is not UTF-8 at byte 32"),
    "tensor name too long": (gguf([], [Tensor("n" * 70000, (32,))]), "a tensor name takes 70000 bytes"),
    "tensor name twice": (gguf([], [T, T]), "the tensor name 't' comes twice"),
    "no dimensions": (
        gguf([], [Tensor("t", ())], data=bytes(64)),
        "tensor 't' has 0 dimensions; 1 to 4 are allowed at byte 33",
    ),
    "five dimensions": (gguf([], [Tensor("t", (1,) * 5)], data=bytes(64)), "tensor 't' has 5 dimensions"),
    "dimension count overflows": (
        gguf([], [T])[:33] + u32(2**32 - 1) + bytes(100),
        "tensor 't' has 4294967295 dimensions",
    ),
    "zero dimension": (
        gguf([], [Tensor("t", (32, 0))], data=b""),
        r"tensor 't' has a dimension of 0: \(32, 0\) at byte 37",
    ),
    "product overflows": (
        gguf([], [Tensor("t", (2**32, 2**32))], data=bytes(64)),
        "tensor 't' has dimensions whose product overflows",
    ),
    "dimension overflows": (gguf([], [Tensor("t", (HUGE,))], data=bytes(64)), "whose product overflows"),
    "tensor type wild": (
        gguf([], [Tensor("t", (32,), 0x7F3A0012)], data=bytes(64)),
        "is of type 2134507538, which is no tensor",
    ),
    "row not whole blocks": (
        gguf([], [Tensor("t", (33, 32), GgmlType.Q4_0)], data=bytes(4096)),
        "tensor 't' has rows of 33 weights, no multiple of the 32 in a block of Q4_0 at byte 37",
    ),
    "offset misaligned": (
        gguf([], [Tensor("t", (32,), offset=8)]),
        "tensor 't' is not aligned to 32 bytes at byte 72",
    ),
    "offset past the end": (
        gguf([], [Tensor("t", (32,), offset=2**20)], data=bytes(128)),
        "goes past the end of the file",
    ),
    "offset overflows": (
        gguf([], [Tensor("t", (32,), offset=2**64 - 32)], data=bytes(128)),
        "goes past the end of the file",
    ),
    "tensor cut short": (
        gguf([], [T])[:-1],
        r"tensor 't' \(128 bytes\) goes past the end .* \(an incomplete download\?\)",
    ),
    "tensors overlap": (
        gguf([], [Tensor("a", (32,), offset=0), Tensor("b", (32,), offset=64)], data=bytes(256)),
        "tensor 'b' overlaps tensor 'a'",
    ),
    "tensors at one place": (
        gguf([], [Tensor("a", (32,), offset=0), Tensor("b", (32,), offset=0)], data=bytes(256)),
        "tensor 'b' overlaps tensor 'a'",
    ),
    "tensors overlap out of order": (
        gguf([], [Tensor("a", (64,), offset=64), Tensor("b", (32,), offset=0)], data=bytes(1024)),
        "tensor 'a' overlaps tensor 'b'",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_header_refuses(name: str, tmp_path: Path) -> None:
    data, message = BAD_FILES[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufFormatError) as caught:
        read_header(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert re.search(message, caught.value.message), caught.value.message
    assert len(caught.value.message) < 1000


def test_header_truncated_anywhere_is_refused(tmp_path: Path) -> None:
    data = small_llama()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data)
    header = read_header(path)
    end = header.parts[0].data_offset
    last = list(header.tensors.values())[-1]
    # The last tensor may end the file without padding, so only what comes before its end is needed.
    lengths = [*range(end + 1), *range(end + 1, last.offset + last.nbytes, 509), last.offset + last.nbytes - 1]
    for length in sorted(lengths, reverse=True):
        os.truncate(path, length)
        with pytest.raises(GgufFormatError):
            read_header(path)


@pytest.mark.parametrize(
    ("number", "message"), [(4, "'t' is Q4_2, a type that ggml has dropped"), (200, "of tensor type 200")]
)
def test_header_tensor_types_nobody_reads_are_unsupported(number: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "new.gguf"
    path.write_bytes(gguf([], [Tensor("t", (256,), number)], data=bytes(1024)))
    with pytest.raises(UnsupportedModel, match=message):
        read_header(path)


def test_array_elements_are_checked_when_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(
        gguf(
            [
                array_pair("s", Kind.STRING, ["ok", b"\xff"]),
                array_pair("b", Kind.BOOL, [0, 1, 7]),
                array_pair("t", Kind.STRING, ["a"]),
            ]
        )
    )
    metadata = read_header(path).metadata
    for key, message in (
        ("s", "string 1 of 's' is not UTF-8 at byte 67"),
        ("b", "element 2 of 'b' is 7, not a bool at byte "),
    ):
        value = metadata[key]
        assert isinstance(value, GgufArray)
        with pytest.raises(GgufFormatError, match=message):
            value.tolist()


@pytest.mark.parametrize(
    ("head", "entry_bytes", "count", "message"),
    [
        (typed("k", u32(9) + u32(8) + u64(MAX_STRINGS + 1)), 8, MAX_STRINGS, "to 4194305 strings; 4194304 are allowed"),
        (
            typed("k", u32(9) + u32(9) + u64(MAX_ARRAYS + 1)),
            12,
            MAX_ARRAYS,
            "to 65537 nested arrays; 65536 are allowed",
        ),
    ],
)
def test_header_too_many_elements_are_refused_before_they_are_walked(
    tmp_path: Path, head: bytes, entry_bytes: int, count: int, message: str
) -> None:
    """A sparse file whose zeros are millions of empty strings, or of empty arrays."""
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.write(gguf([head]))
        file.truncate((entry_bytes + 1) * (count + 1))
    start = time.process_time()
    with pytest.raises(GgufFormatError, match=message):
        read_header(path)
    assert time.process_time() - start < 1


@pytest.mark.parametrize(("tensors", "pairs", "what"), [(MAX_ENTRIES + 1, 0, "tensors"), (0, MAX_ENTRIES + 1, "pairs")])
def test_header_too_many_entries_are_refused(tmp_path: Path, tensors: int, pairs: int, what: str) -> None:
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + u32(3) + u64(tensors) + u64(pairs))
        file.truncate(64 * MAX_ENTRIES)
    with pytest.raises(GgufFormatError, match=f"65537 .*{what} are announced; 65536 are allowed"):
        read_header(path)


def test_header_of_a_huge_string_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.write(gguf([typed("k", u32(8) + u64(2**30))]))
        file.truncate(2**31)
    tracemalloc.start()
    try:
        with pytest.raises(
            GgufFormatError, match="the value of 'k' takes 1073741824 bytes; at most 268435456 are allowed"
        ):
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_header_large_plain_arrays_cost_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    count = 2**30
    with path.open("wb") as file:
        file.write(string_free_head(count))
        file.truncate(2**31)
    tracemalloc.start()
    try:
        header = read_header(path)
        value = header.metadata["k"]
        assert isinstance(value, GgufArray)
        assert len(value) == count
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def string_free_head(count: int) -> bytes:
    return b"GGUF" + u32(3) + u64(0) + u64(1) + string("k") + u32(9) + u32(0) + u64(count)


def test_header_names_in_messages_are_short_and_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(gguf([pair("k\x1b[2J\n" * 5000, Kind.BOOL, 2)]))
    with pytest.raises(GgufFormatError) as caught:
        read_header(path)
    assert len(caught.value.message) < 400 + len(str(path))
    assert "\x1b" not in caught.value.message
    assert "\n" not in caught.value.message


def test_header_of_things_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(GgufFormatError, match="is a directory, not a file"):
        read_header(tmp_path)
    with pytest.raises(GgufFormatError, match=r"nothing.gguf: no such file"):
        read_header(tmp_path / "nothing.gguf")
    (tmp_path / "dangling.gguf").symlink_to("nothing.gguf")
    with pytest.raises(GgufFormatError, match=r"dangling.gguf: no such file"):
        read_header(tmp_path / "dangling.gguf")
    (tmp_path / "loop.gguf").symlink_to("loop.gguf")
    with pytest.raises(GgufFormatError, match=r"loop.gguf: cannot be read: "):
        read_header(tmp_path / "loop.gguf")
    with pytest.raises(GgufFormatError, match="cannot be read: "):
        read_header(f"{tmp_path}/nul\0.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(GgufFormatError, match="is not a regular file"):
        read_header(tmp_path / "pipe.gguf")
    with pytest.raises(GgufFormatError, match="is not a regular file"):
        read_header("/dev/null")
