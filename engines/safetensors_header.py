"""Headers of safetensors files: a u64 length, that many bytes of JSON, then the tensors without gaps.

Source: the format description in the safetensors repository's README. Files are opened by nobody's word: lengths are held
against the file's size, and every tensor is checked to lie within it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeGuard

from engines.checkpoint_file import FileIdentity, open_regular, short
from engines.errors import CheckpointError, GgufFormatError
from engines.gguf_reader import GgufReader

__all__ = [
    "SafetensorsFile",
    "SafetensorsHeader",
    "SafetensorsTensor",
    "load_json",
    "read_safetensors_header",
]

MAX_HEADER_BYTES: Final = 100_000_000  # the limit of the format's own reader
INDEX_NAME: Final = "model.safetensors.index.json"

BITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
        **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
        **dict.fromkeys(("U32", "I32", "F32"), 32),
        **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
        **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
        "F4": 4,
    }
)


@dataclass(frozen=True)
class SafetensorsTensor:
    """One tensor: ``offset`` counts from the start of its file, ``file`` is an index into the header's ``files``."""

    name: str
    dtype: str  # as the file names it: F32, BF16, U32, …
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    file: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class SafetensorsFile:
    """One file; ``data_offset`` is where its header ends, in bytes."""

    identity: FileIdentity
    data_offset: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """The tensor tables of one file, or of all the shards of a directory."""

    files: tuple[SafetensorsFile, ...]
    metadata: Mapping[str, str] = field(repr=False)
    tensors: Mapping[str, SafetensorsTensor] = field(repr=False)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(file.identity.path for file in self.files)

    @property
    def file_bytes(self) -> int:
        return sum(file.identity.size for file in self.files)


def read_safetensors_header(path: str | os.PathLike[str]) -> SafetensorsHeader:
    """Reads one file's header, or of a directory those of the shards its index names (else of every ``*.safetensors``).

    CheckpointError says what is wrong, in which file.
    """
    place = Path(os.path.abspath(path))  # noqa: PTH100 - not resolve(): the siblings of a symlink are beside the link
    files: list[SafetensorsFile] = []
    metadata: dict[str, str] = {}
    tensors: dict[str, SafetensorsTensor] = {}
    for shard in _shards(place) if place.is_dir() else [place]:
        file, its_metadata, its_tensors = _read_file(shard, len(files))
        twice = next((name for name in its_tensors if name in tensors), None)
        if twice is not None:
            raise CheckpointError(
                f"{shard}: tensor {short(twice)} is also in {files[tensors[twice].file].identity.path}"
            )
        files.append(file)
        metadata |= its_metadata
        tensors |= its_tensors
    return SafetensorsHeader(tuple(files), MappingProxyType(metadata), MappingProxyType(tensors))


def load_json(path: Path, limit: int) -> dict[str, Any]:
    """The JSON object in a file of at most ``limit`` bytes; CheckpointError when it is anything else."""
    file, identity = _open(path)
    with file:
        if identity.size > limit:
            raise CheckpointError(f"{path}: {identity.size} bytes; at most {limit} are read")
        return _parse(file.read(limit), str(path))


def _shards(directory: Path) -> list[Path]:
    index = directory / INDEX_NAME
    if index.exists():
        weight_map = load_json(index, MAX_HEADER_BYTES).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise CheckpointError(f"{index}: weight_map is missing, or does not map tensors to files")
        names = sorted(set(weight_map.values()))
        outside = next((name for name in names if Path(name).name != name), None)
        if outside is not None:
            raise CheckpointError(f"{index}: names a file outside its directory: {short(outside)}")
        missing = next((name for name in names if not (directory / name).exists()), None)
        if missing is not None:
            raise CheckpointError(f"{directory / missing}: named in {INDEX_NAME}, but missing")
        found = [directory / name for name in names]
    else:
        found = sorted(directory.glob("*.safetensors"))
    if not found:
        raise CheckpointError(f"{directory}: no safetensors files")
    return found


def _read_file(path: Path, number: int) -> tuple[SafetensorsFile, dict[str, str], dict[str, SafetensorsTensor]]:
    file, identity = _open(path)
    with file:
        if identity.size < 8:
            raise CheckpointError(f"{path}: {identity.size} bytes; not a safetensors file")
        reader = GgufReader(file, identity)
        length = reader.u64("the header length")
        if length > min(reader.left, MAX_HEADER_BYTES):
            raise CheckpointError(
                f"{path}: a header of {length} bytes is announced; the file has {reader.left} left, and at most"
                f" {MAX_HEADER_BYTES} are allowed"
            )
        table = _parse(reader.take(length, "the header"), str(path))
    place = SafetensorsFile(identity, 8 + length)
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ does not map strings to strings")
    tensors = {name: _tensor(name, entry, place, number) for name, entry in table.items()}
    end = place.data_offset
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            kind = "overlaps the tensor before it" if tensor.offset < end else "leaves a gap before it"
            raise CheckpointError(f"{path}: tensor {short(tensor.name)} {kind}, at byte {tensor.offset}")
        end += tensor.nbytes
    if end != identity.size:
        raise CheckpointError(
            f"{path}: the tensors end at byte {end}, the file at {identity.size}"
            + (" (an incomplete download?)" if end > identity.size else "")
        )
    return place, metadata, tensors


def _tensor(name: str, entry: object, place: SafetensorsFile, number: int) -> SafetensorsTensor:
    def wrong(what: str) -> CheckpointError:
        return CheckpointError(f"{place.identity.path}: tensor {short(name)} {what}")

    if not isinstance(entry, dict):
        raise wrong("has an entry that is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        raise wrong(f"is of dtype {short(dtype)}, which is not known")
    if not _are_sizes(shape):
        raise wrong(f"has the shape {short(shape)}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f"has the data_offsets {short(offsets)}")
    begin, end = offsets
    if math.prod(shape) * BITS[dtype] != 8 * (end - begin):
        raise wrong(f"of shape {shape} and dtype {dtype} does not take the {end - begin} bytes of its data_offsets")
    return SafetensorsTensor(name, dtype, tuple(shape), place.data_offset + begin, end - begin, number)


def _are_sizes(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 63 for size in value)


def _open(path: Path) -> tuple[Any, FileIdentity]:
    try:
        return open_regular(path)
    except GgufFormatError as error:  # the sentence is right, the kind is not
        raise CheckpointError(error.message) from error


def _parse(raw: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: not a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found
