"""Writes GGUF checkpoints.

:func:`write_checkpoint` makes one of metadata and tensors in memory, on gguf-py's writer: for tests, tools and tiny models;
conventions of names are the caller's. :func:`rewrite_checkpoint` makes one of another, with other tensor types: metadata is
copied byte for byte, and the tensors' data is written as it comes.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np
from numpy.typing import NDArray

from engines.checkpoint_file import open_regular
from engines.errors import CheckpointError, GgufFormatError
from engines.ggml_types import GgmlType
from engines.gguf_reader import GgufReader
from engines.gguf_value_types import GgufValueType
from engines.header import GgufHeader

__all__ = ["CheckpointTensor", "CheckpointValue", "PlannedTensor", "rewrite_checkpoint", "write_checkpoint"]

CheckpointValue = bool | int | float | str | Sequence[int] | Sequence[float] | Sequence[str] | Sequence[bool]
"""A metadata value: int is written as UINT32 (INT32 if negative, UINT64 above 32 bits), float as FLOAT32."""

CheckpointTensor = tuple[str, NDArray[np.float32] | NDArray[np.uint8]]
"""A quant type's name and either the uint8 rows of its blocks ``[..., row bytes]``, or float32 weights for ``F32``."""

Data = NDArray[np.uint8]

_QUANTIZATION_VERSION = 2  # of ggml's block layouts, as gguf-py's ``GGML_QUANT_VERSION``


def write_checkpoint(
    path: str | Path,
    architecture: str,
    metadata: Mapping[str, CheckpointValue],
    tensors: Mapping[str, CheckpointTensor],
    tokenizer: Mapping[str, CheckpointValue] | None = None,
) -> Path:
    """Writes one GGUF v3 file and returns its path.

    ``metadata`` and ``tokenizer`` have full keys (``llama.block_count``, ``tokenizer.ggml.tokens``); ``general.architecture``
    and ``general.quantization_version`` are added. ``tensors`` are in row-major order (out, in) under their GGUF names.
    """
    writer = gguf.GGUFWriter(path, architecture)
    try:
        for key, value in {**metadata, **(tokenizer or {})}.items():
            _add_value(writer, key, value)
        writer.add_quantization_version(_QUANTIZATION_VERSION)
        for name, (quant, data) in tensors.items():
            writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=gguf.GGMLQuantizationType[quant])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return Path(path)


def _add_value(writer: gguf.GGUFWriter, key: str, value: CheckpointValue) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int() if value < 0:
            writer.add_int32(key, value)
        case int() if value > 0xFFFF_FFFF:
            writer.add_uint64(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, list(value))


# --- one checkpoint from another --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to be written; ``shape`` is row-major, (out, in) for a matrix."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes its data takes."""
        return math.prod(self.shape) // self.type.block_size * self.type.block_bytes


def rewrite_checkpoint(
    path: str | Path,
    source: GgufHeader,
    numbers: Mapping[str, int],
    tensors: Sequence[PlannedTensor],
    data: Callable[[PlannedTensor], Iterable[Data]],
) -> Path:
    """Writes one GGUF v3 file with the metadata of ``source`` and the tensors given, and returns its path.

    ``numbers`` are metadata that is set, as UINT32; what says how ``source`` was split is left out. ``data`` yields a tensor's
    bytes in pieces, which are written at once. The file is complete before it gets its name, in place of one that was there;
    nothing is left behind on failure. CheckpointError when the file cannot be written, ValueError when ``data`` yields more or
    less than the tensor's bytes.
    """
    path = Path(path)
    if not path.name or "\0" in path.name:
        raise CheckpointError(f"{path} is no name of a file that can be written")
    pairs = _pairs(source) | {key: _encoded(key, number) for key, number in numbers.items()}
    pairs["general.quantization_version"] = _encoded("general.quantization_version", _QUANTIZATION_VERSION)
    for key in ("split.no", "split.count", "split.tensors.count"):
        pairs.pop(key, None)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with unfinished.open("wb") as file:
            file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)))
            file.writelines(pairs.values())
            file.write(_table(tensors, source.alignment))
            for tensor in tensors:
                _pad(file, source.alignment)
                _write_data(file, tensor, data(tensor))
            _pad(file, source.alignment)
        unfinished.replace(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # the file's name may be what is wrong
            unfinished.unlink(missing_ok=True)
    return path


def _pairs(source: GgufHeader) -> dict[str, bytes]:
    """The metadata pairs of the first part as they lie in the file, by key."""
    file, identity = open_regular(source.path)
    with file:
        if identity != source.parts[0].identity:
            raise GgufFormatError(identity.path, "has changed since its header was read")
        reader = GgufReader(file, identity, 24)
        extents: dict[str, tuple[int, int]] = {}
        for number in range(len(source.metadata)):
            start = reader.position
            key = reader.name(f"metadata key {number}")
            reader.value(key)
            extents[key] = (start, reader.position)
        reader = GgufReader(file, identity, 24)
        return {key: reader.take(end - start, f"the pair {key}") for key, (start, end) in extents.items()}


def _encoded(key: str, number: int) -> bytes:
    raw = key.encode()
    return struct.pack("<Q", len(raw)) + raw + struct.pack("<II", GgufValueType.UINT32, number)


def _table(tensors: Sequence[PlannedTensor], alignment: int) -> bytes:
    table = bytearray()
    offset = 0
    for tensor in tensors:
        raw = tensor.name.encode()
        table += struct.pack("<Q", len(raw)) + raw + struct.pack("<I", len(tensor.shape))
        table += struct.pack(f"<{len(tensor.shape)}QIQ", *reversed(tensor.shape), tensor.type, offset)
        offset += -(-tensor.nbytes // alignment) * alignment
    return bytes(table)


def _write_data(file: BinaryIO, tensor: PlannedTensor, pieces: Iterable[Data]) -> None:
    left = tensor.nbytes
    for piece in pieces:
        left -= piece.nbytes
        file.write(np.ascontiguousarray(piece).data.cast("B"))
    if left:
        raise ValueError(f"tensor {tensor.name} takes {tensor.nbytes} bytes; {tensor.nbytes - left} were given")


def _pad(file: BinaryIO, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))
