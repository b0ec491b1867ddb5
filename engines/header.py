"""Headers of model files: metadata and tensor table of GGUF, tensor table of safetensors. No tensor data, no NumPy.

:func:`read_header` reads one GGUF file, or a set that was split in parts (``NAME-00001-of-0000N.gguf``), and checks all that
can be checked without looking at the weights: after it, every tensor is known to lie within its file, aligned, and apart from
the others. What is wrong is a :class:`~engines.errors.GgufFormatError` that says what and where; a tensor type nobody has
heard of is an :class:`~engines.errors.UnsupportedModel`.

A file, front to back: magic ``GGUF``, version (u32), tensor count (u64), pair count (u64), the metadata pairs, the tensor
table, padding up to ``general.alignment``, the tensors. Source: the GGUF specification (docs/gguf.md of ggml), versions 2 and
3, little-endian.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from engines.checkpoint_file import FileIdentity, open_regular, short
from engines.errors import GgufFormatError, UnsupportedModel
from engines.ggml_types import REMOVED_TYPES, GgmlType
from engines.gguf_reader import GgufArray, GgufReader, MetadataValue
from engines.gguf_value_types import GgufValueType
from engines.safetensors_header import SafetensorsFile, SafetensorsHeader, SafetensorsTensor, read_safetensors_header

__all__ = [
    "FileIdentity",
    "GgmlType",
    "GgufArray",
    "GgufHeader",
    "GgufPart",
    "GgufValueType",
    "MetadataValue",
    "SafetensorsFile",
    "SafetensorsHeader",
    "SafetensorsTensor",
    "TensorInfo",
    "content_key",
    "read_header",
    "read_safetensors_header",
]

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_ALIGNMENT: Final = 1 << 20
MAX_DIMENSIONS: Final = 4
LEAST_PAIR_BYTES: Final = 8 + 1 + 4 + 1  # key length, key, type, value
LEAST_TENSOR_BYTES: Final = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, dimension count, a dimension, type, offset
MAX_ENTRIES: Final = 1 << 16  # pairs or tensors; the largest models have some thousands
MAX_TYPE_ID: Final = 255  # a larger id is damage; up to it, a type of some later or former ggml

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the table. ``shape`` is row-major, (out, in) for a matrix: the reverse of ggml's order."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    offset: int  # bytes from the start of its file
    nbytes: int
    part: int  # index into GgufHeader.paths

    @property
    def count(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class GgufPart:
    """One file of a set. ``data_offset`` is where its header ends: the padded start of its tensors, in bytes."""

    identity: FileIdentity
    alignment: int
    data_offset: int


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says of itself. Metadata is that of the first part; tensors are those of all parts, in file order."""

    version: int
    parts: tuple[GgufPart, ...]
    metadata: Mapping[str, MetadataValue] = field(repr=False)
    tensors: Mapping[str, TensorInfo] = field(repr=False)

    @property
    def paths(self) -> tuple[str, ...]:
        """Absolute paths of all parts, in order; symlinks are kept as they are."""
        return tuple(part.identity.path for part in self.parts)

    @property
    def path(self) -> str:
        """Absolute path of the file, or of the first part."""
        return self.parts[0].identity.path

    @property
    def alignment(self) -> int:
        """Alignment of the tensors in the (first) file, in bytes."""
        return self.parts[0].alignment

    @property
    def file_bytes(self) -> int:
        """Size of all parts."""
        return sum(part.identity.size for part in self.parts)

    def text(self, key: str) -> str | None:
        """The string under ``key``, or None. GgufFormatError when the value is not a string."""
        value = self.metadata.get(key)
        if value is None or isinstance(value, str):
            return value
        raise self._wrong_type(key, value, "a string")

    def integer(self, key: str) -> int | None:
        """The integer under ``key``, or None. GgufFormatError when the value is not an integer."""
        value = self.metadata.get(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._wrong_type(key, value, "an integer")

    def integers(self, key: str, count: int) -> list[int] | None:
        """``count`` integers, one a layer: the array under ``key``, or its one integer repeated; None when it is absent.

        GgufFormatError when the value is neither, or an array of another length.
        """
        value = self.metadata.get(key)
        if isinstance(value, GgufArray):
            if len(value) != count:
                raise GgufFormatError(self.path, f"{short(key)} has {len(value)} elements where {count} are needed")
            return value.integers()
        number = self.integer(key)
        return None if number is None else [number] * count

    def _wrong_type(self, key: str, value: MetadataValue, wanted: str) -> GgufFormatError:
        return GgufFormatError(self.path, f"{short(key)} is {short(value)}, not {wanted}")


def read_header(path: str | os.PathLike[str]) -> GgufHeader:
    """Reads the header of a GGUF file, or of a split set given its first part.

    Raises GgufFormatError (what is wrong, in which file, at which byte; or the part that is missing) and UnsupportedModel (a
    tensor type this version does not know).
    """
    first = os.path.abspath(path)  # noqa: PTH100 - not resolve(): the siblings of a symlink are beside the link
    version, part, metadata, tensors = _read_part(first, 0)
    split = _split_of(first, metadata)
    if split is None:
        return GgufHeader(version, (part,), MappingProxyType(metadata), MappingProxyType(tensors))
    parts = [part]
    for number, sibling in enumerate(split[1:], start=1):
        if not Path(sibling).exists():
            raise GgufFormatError(sibling, f"part {number + 1} of {len(split)} is missing beside {Path(first).name}")
        _, other, its_metadata, its_tensors = _read_part(sibling, number)
        _check_split_keys(sibling, its_metadata, number, len(split))
        twice = next((name for name in its_tensors if name in tensors), None)
        if twice is not None:
            raise GgufFormatError(sibling, f"tensor {short(twice)} is also in {split[tensors[twice].part]}")
        parts.append(other)
        tensors.update(its_tensors)
    announced = _split_number(first, metadata, "split.tensors.count")
    if announced is not None and announced != len(tensors):
        raise GgufFormatError(first, f"the set has {len(tensors)} tensors, split.tensors.count says {announced}")
    return GgufHeader(version, tuple(parts), MappingProxyType(metadata), MappingProxyType(tensors))


def content_key(
    source: GgufHeader | SafetensorsHeader | str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> str:
    """SHA-256 (hex) of each file's header bytes, size and modification time: two checkpoints with one key are one model.

    ``source`` is a header that was read, or the path or paths of the files, whose headers are then read. The weights are not.
    Raises what reading the headers raises, and GgufFormatError when a file has changed since its header was read.
    """
    parts: Sequence[GgufPart | SafetensorsFile]
    if isinstance(source, GgufHeader):
        parts = source.parts
    elif isinstance(source, SafetensorsHeader):
        parts = source.files
    else:
        paths = [source] if isinstance(source, str | os.PathLike) else source
        parts = [_read_place(os.path.abspath(path)) for path in paths]  # noqa: PTH100 - as in read_header
    digest = hashlib.sha256()
    for part in parts:
        file, identity = open_regular(part.identity.path)
        with file:
            if identity != part.identity:
                raise GgufFormatError(identity.path, "has changed since its header was read")
            reader = GgufReader(file, identity)
            digest.update(f"{identity.size} {identity.mtime_ns} {part.data_offset}\n".encode())
            while reader.position < part.data_offset:
                digest.update(reader.take(min(1 << 20, part.data_offset - reader.position), "the header"))
    return digest.hexdigest()


def _read_place(path: str) -> GgufPart | SafetensorsFile:
    if path.endswith(".safetensors"):
        return read_safetensors_header(path).files[0]
    return _read_part(path, 0)[1]


# --- one file -------------------------------------------------------------------------------------------------------


def _read_part(path: str, number: int) -> tuple[int, GgufPart, dict[str, MetadataValue], dict[str, TensorInfo]]:
    file, identity = open_regular(path)
    with file:
        reader = GgufReader(file, identity)
        version, tensor_count, pair_count = _read_preamble(reader)
        metadata = _read_metadata(reader, pair_count)
        alignment = _alignment(path, metadata)
        table = [_read_tensor(reader, number) for _ in range(tensor_count)]
        end = reader.position
    data_offset = (
        min(-(-end // alignment) * alignment, identity.size) if not table else -(-end // alignment) * alignment
    )
    part = GgufPart(identity, alignment, data_offset)
    return version, part, metadata, _place(table, part)


def _read_preamble(reader: GgufReader) -> tuple[int, int, int]:
    """Version, tensor count and pair count, all three believable."""
    if reader.left == 0:
        raise reader.error("the file is empty")
    magic = reader.take(min(4, reader.left), "the magic")
    if magic != MAGIC:
        raise reader.error(f"not a GGUF file: it starts with {magic!r}, not {MAGIC!r}", 0)
    version = reader.u32("the version")
    if version not in VERSIONS:
        raise reader.error(_bad_version(version), 4)
    tensor_count = reader.u64("the tensor count")
    pair_count = reader.u64("the metadata count")
    for at, what, count, least in (
        (8, "tensors", tensor_count, LEAST_TENSOR_BYTES),
        (16, "metadata pairs", pair_count, LEAST_PAIR_BYTES),
    ):
        if count * least > reader.left:
            raise reader.error(f"{count} {what} are announced, but the file has {reader.left} bytes left", at)
        if count > MAX_ENTRIES:
            raise reader.error(f"{count} {what} are announced; {MAX_ENTRIES} are allowed", at)
    return version, tensor_count, pair_count


def _bad_version(version: int) -> str:
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if 1 <= swapped <= max(VERSIONS):
        return f"a big-endian GGUF file (version {swapped}); only little-endian ones can be read: convert it again"
    if version == 1:
        return "GGUF version 1 is not read any more: convert the model again with a current llama.cpp"
    return f"GGUF version {version} is not known; versions {VERSIONS[0]} and {VERSIONS[1]} are"


def _read_metadata(reader: GgufReader, count: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for number in range(count):
        start = reader.position
        key = reader.name(f"metadata key {number}")
        if key in metadata:
            raise reader.error(f"the metadata key {short(key)} comes twice", start)
        metadata[key] = reader.value(key)
    return metadata


def _alignment(path: str, metadata: Mapping[str, MetadataValue]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool):
        raise GgufFormatError(path, f"general.alignment is {short(value)}, not an integer")
    if value < 8 or value > MAX_ALIGNMENT or value & (value - 1):
        raise GgufFormatError(path, f"general.alignment is {value}; a power of two from 8 to {MAX_ALIGNMENT} is needed")
    return value


def _read_tensor(reader: GgufReader, part: int) -> TensorInfo:
    """One row of the table; ``offset`` still counts from the start of the tensors."""
    name = reader.name("a tensor name")
    what = f"tensor {short(name)}"
    start = reader.position
    dimensions = reader.u32(f"the dimension count of {what}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise reader.error(f"{what} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed", start)
    start = reader.position
    sizes = reader.u64s(dimensions, f"the dimensions of {what}")
    if 0 in sizes:
        raise reader.error(f"{what} has a dimension of 0: {sizes}", start)
    if math.prod(sizes) >= 1 << 63:
        raise reader.error(f"{what} has dimensions whose product overflows: {sizes}", start)
    type_start = reader.position
    kind = _tensor_type(reader, reader.u32(f"the type of {what}"), what, type_start)
    if sizes[0] % kind.block_size:
        raise reader.error(
            f"{what} has rows of {sizes[0]} weights, no multiple of the {kind.block_size} in a block of {kind.name}",
            start,
        )
    offset = reader.u64(f"the offset of {what}")
    nbytes = math.prod(sizes) // kind.block_size * kind.block_bytes
    return TensorInfo(name, kind, tuple(reversed(sizes)), offset, nbytes, part)


def _tensor_type(reader: GgufReader, number: int, what: str, start: int) -> GgmlType:
    try:
        return GgmlType(number)
    except ValueError:
        pass
    if number > MAX_TYPE_ID:
        raise reader.error(f"{what} is of type {number}, which is no tensor type", start)
    path = reader.identity.path
    if number in REMOVED_TYPES:
        raise UnsupportedModel(
            f"{path}: {what} is {REMOVED_TYPES[number]}, a type that ggml has dropped: quantise it again"
        )
    raise UnsupportedModel(f"{path}: {what} is of tensor type {number}, which this version does not know")


def _place(table: Sequence[TensorInfo], part: GgufPart) -> dict[str, TensorInfo]:
    """The table with absolute offsets, once no name comes twice and no two tensors share a byte."""
    path, size = part.identity.path, part.identity.size
    placed: dict[str, TensorInfo] = {}
    for tensor in table:
        if tensor.name in placed:
            raise GgufFormatError(path, f"the tensor name {short(tensor.name)} comes twice")
        start = part.data_offset + tensor.offset
        if tensor.offset % part.alignment:
            raise GgufFormatError(path, f"tensor {short(tensor.name)} is not aligned to {part.alignment} bytes", start)
        if start + tensor.nbytes > size:
            raise GgufFormatError(
                path,
                f"tensor {short(tensor.name)} ({tensor.nbytes} bytes) goes past the end of the file, which has {size} bytes"
                " (an incomplete download?)",
                start,
            )
        placed[tensor.name] = TensorInfo(tensor.name, tensor.type, tensor.shape, start, tensor.nbytes, tensor.part)
    end, before = part.data_offset, ""
    for tensor in sorted(placed.values(), key=lambda tensor: tensor.offset):
        if tensor.offset < end:
            raise GgufFormatError(path, f"tensor {short(tensor.name)} overlaps tensor {short(before)}", tensor.offset)
        end, before = tensor.offset + tensor.nbytes, tensor.name
    return placed


# --- split sets -----------------------------------------------------------------------------------------------------


def _split_of(first: str, metadata: Mapping[str, MetadataValue]) -> list[str] | None:
    """The paths of all parts, or None for a file that is whole. Checks the first part's name and split keys."""
    named = _SPLIT_NAME.fullmatch(Path(first).name)
    count = _split_number(first, metadata, "split.count")
    if count is None or count <= 1:
        if named is not None and int(named["count"]) > 1:
            raise GgufFormatError(first, f"is named as one of {int(named['count'])} parts, but has no split.count")
        return None
    if named is None:
        raise GgufFormatError(
            first,
            f"is a part of {count}, but is not named so: NAME-00001-of-{count:05}.gguf is needed to find the others",
        )
    if int(named["count"]) != count:  # asked first: it bounds the number of names made below
        raise GgufFormatError(first, f"is named as one of {int(named['count'])} parts, but split.count is {count}")
    paths = [str(Path(first).with_name(f"{named['stem']}-{i:05}-of-{count:05}.gguf")) for i in range(1, count + 1)]
    number = int(named["number"])
    if number != 1:
        raise GgufFormatError(first, f"is part {number} of {count}: open the first one, {Path(paths[0]).name}")
    _check_split_keys(first, metadata, 0, count)
    return paths


def _check_split_keys(path: str, metadata: Mapping[str, MetadataValue], number: int, count: int) -> None:
    for key, wanted in (("split.no", number), ("split.count", count)):
        value = _split_number(path, metadata, key)
        if value != wanted:
            raise GgufFormatError(path, f"{key} is {'missing' if value is None else value} where {wanted} is needed")


def _split_number(path: str, metadata: Mapping[str, MetadataValue], key: str) -> int | None:
    value = metadata.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise GgufFormatError(path, f"{key} is {short(value)}, not an integer")
