"""Split sets: parts found beside the first, their keys checked, their tensors merged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from engines.errors import GgufFormatError
from engines.header import GgufArray, GgufValueType, content_key, read_header
from tests.engines.helpers_gguf_bytes import ARCHITECTURE, Tensor, array_pair, gguf, pair

Kind = GgufValueType


def part_name(number: int, count: int, stem: str = "model") -> str:
    return f"{stem}-{number:05}-of-{count:05}.gguf"


def split_keys(number: int | None, count: int | None, tensors: int | None) -> list[bytes]:
    keys = (
        ("split.no", Kind.UINT16, number),
        ("split.count", Kind.UINT16, count),
        ("split.tensors.count", Kind.INT32, tensors),
    )
    return [pair(key, kind, value) for key, kind, value in keys if value is not None]


def write_set(directory: Path, names: Sequence[Sequence[str]], *, total: int | None = None) -> Path:
    """A set whose part i holds the tensors ``names[i]``; the first part's path."""
    count = len(names)
    total = sum(map(len, names)) if total is None else total
    for number, part in enumerate(names):
        first = [ARCHITECTURE, array_pair("tokens", Kind.STRING, ["a", "b"])] if number == 0 else []
        data = gguf([*first, *split_keys(number, count, total)], [Tensor(name, (32,)) for name in part])
        (directory / part_name(number + 1, count)).write_bytes(data)
    return directory / part_name(1, count)


def test_split_set_is_read_whole(tmp_path: Path) -> None:
    first = write_set(tmp_path, [["a"], ["b", "c"], ["d"]])
    header = read_header(first)
    assert header.paths == tuple(str(tmp_path / part_name(number, 3)) for number in (1, 2, 3))
    assert header.path == str(first)
    assert [(tensor.name, tensor.part) for tensor in header.tensors.values()] == [
        ("a", 0),
        ("b", 1),
        ("c", 1),
        ("d", 2),
    ]
    assert header.tensors["c"].offset == header.parts[1].data_offset + 128
    assert header.metadata["general.architecture"] == "llama"
    tokens = header.metadata["tokens"]
    assert isinstance(tokens, GgufArray)
    assert tokens.tolist() == ["a", "b"]
    assert header.file_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert content_key(header) == content_key(header.paths)


def test_split_first_part_may_hold_metadata_only(tmp_path: Path) -> None:
    header = read_header(write_set(tmp_path, [[], ["a"]]))
    assert header.tensors["a"].part == 1


def test_split_content_key_sees_every_part(tmp_path: Path) -> None:
    first = write_set(tmp_path, [["a"], ["b"]])
    key = content_key(read_header(first))
    with (tmp_path / part_name(2, 2)).open("ab") as file:
        file.write(b"\0")
    assert content_key(read_header(first)) != key


def test_split_siblings_are_beside_a_symlink(tmp_path: Path) -> None:
    """A download cache keeps blobs under their digests, and links with the right names in one directory."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    write_set(tmp_path / "blobs", [["a"], ["b"]])
    for number in (1, 2):
        blob = (tmp_path / "blobs" / part_name(number, 2)).rename(tmp_path / "blobs" / f"digest{number}")
        (tmp_path / "snapshot" / part_name(number, 2)).symlink_to(blob)
    header = read_header(tmp_path / "snapshot" / part_name(1, 2))
    assert set(header.tensors) == {"a", "b"}


def test_split_of_one_is_a_whole_file(tmp_path: Path) -> None:
    assert read_header(write_set(tmp_path, [["a"]])).paths == (str(tmp_path / part_name(1, 1)),)


def test_split_missing_part_is_named(tmp_path: Path) -> None:
    first = write_set(tmp_path, [["a"], ["b"], ["c"]])
    (tmp_path / part_name(2, 3)).unlink()
    with pytest.raises(
        GgufFormatError, match=r"model-00002-of-00003.gguf: part 2 of 3 is missing beside model-00001-of"
    ):
        read_header(first)


def test_split_other_part_names_the_first(tmp_path: Path) -> None:
    write_set(tmp_path, [["a"], ["b"]])
    with pytest.raises(GgufFormatError, match=r"is part 2 of 2: open the first one, model-00001-of-00002.gguf"):
        read_header(tmp_path / part_name(2, 2))


def test_split_renamed_part_is_refused(tmp_path: Path) -> None:
    first = write_set(tmp_path, [["a"], ["b"]]).rename(tmp_path / "renamed.gguf")
    with pytest.raises(
        GgufFormatError, match=r"is a part of 2, but is not named so: NAME-00001-of-00002.gguf is needed"
    ):
        read_header(first)


def test_split_name_without_keys_is_refused(tmp_path: Path) -> None:
    path = tmp_path / part_name(1, 2)
    path.write_bytes(gguf([ARCHITECTURE], [Tensor("a", (32,))]))
    with pytest.raises(GgufFormatError, match=r"is named as one of 2 parts, but has no split.count"):
        read_header(path)


def test_split_count_in_name_and_key_must_agree(tmp_path: Path) -> None:
    first = write_set(tmp_path, [["a"], ["b"]]).rename(tmp_path / part_name(1, 3))
    with pytest.raises(GgufFormatError, match=r"is named as one of 3 parts, but split.count is 2"):
        read_header(first)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (split_keys(0, 2, 2), r"split.no is 0 where 1 is needed"),
        (split_keys(None, 2, 2), r"split.no is missing where 1 is needed"),
        (split_keys(1, 3, 2), r"split.count is 3 where 2 is needed"),
        (split_keys(1, None, 2), r"split.count is missing where 2 is needed"),
        ([pair("split.no", Kind.STRING, "1")], r"split.no is '1', not an integer"),
    ],
)
def test_split_keys_of_a_part_are_checked(keys: list[bytes], message: str, tmp_path: Path) -> None:
    first = write_set(tmp_path, [["a"], ["b"]])
    (tmp_path / part_name(2, 2)).write_bytes(gguf(keys, [Tensor("b", (32,))]))
    with pytest.raises(GgufFormatError, match=rf"model-00002-of-00002.gguf: {message}"):
        read_header(first)


def test_split_tensor_count_is_checked(tmp_path: Path) -> None:
    with pytest.raises(GgufFormatError, match=r"the set has 2 tensors, split.tensors.count says 3"):
        read_header(write_set(tmp_path, [["a"], ["b"]], total=3))


def test_split_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GgufFormatError, match=r"00002-of-00002.gguf: tensor 'a' is also in .*00001-of-00002.gguf"):
        read_header(write_set(tmp_path, [["a"], ["a"]]))


def test_split_damaged_part_is_named(tmp_path: Path) -> None:
    first = write_set(tmp_path, [["a"], ["b"]])
    second = tmp_path / part_name(2, 2)
    second.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(GgufFormatError, match=r"00002-of-00002.gguf: tensor 'b' .* goes past the end"):
        read_header(first)


def test_split_count_that_nobody_can_have_is_refused(tmp_path: Path) -> None:
    path = tmp_path / part_name(1, 99999)
    keys = [pair("split.no", Kind.UINT16, 0), pair("split.count", Kind.UINT64, 2**63)]
    path.write_bytes(gguf([ARCHITECTURE, *keys], [Tensor("a", (32,))]))
    with pytest.raises(GgufFormatError, match=f"is named as one of 99999 parts, but split.count is {2**63}"):
        read_header(path)
