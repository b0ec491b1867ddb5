"""Quantising a GGUF file: tensor by tensor, in slabs of rows, so that memory stays bounded whatever the file's size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from engines.checkpoint_file import open_regular
from engines.errors import CheckpointError, UnsupportedModel
from engines.ggml_types import GgmlType
from engines.gguf.quantise.encode import quantise
from engines.gguf.quantise.mix import MixedModel, find_mix, tensor_types
from engines.gguf.quants import FloatType, quant_type
from engines.gguf.writer import PlannedTensor, rewrite_checkpoint
from engines.header import GgufArray, GgufHeader, TensorInfo, read_header

__all__ = ["mixed_model", "quantise_file"]

SLAB_WEIGHTS: Final = 1 << 23  # 32 MiB in float32
COPY_BYTES: Final = 1 << 24


def quantise_file(
    source: GgufHeader | str | os.PathLike[str],
    target: str | os.PathLike[str],
    mix: str,
    *,
    requantise: bool = False,
    threads: int | None = None,
) -> Path:
    """Writes the model of ``source`` (a file, or the first part of a split set) to one file ``target`` in ``mix``.

    Metadata is taken over, with another ``general.file_type``. The file appears under its name when it is complete, in place
    of one that was there; at most about 150 MB are held, whatever the tensors' sizes.

    Raises UnsupportedModel for an unknown mix, a tensor type that cannot be read, and a source that is quantised already,
    unless ``requantise`` allows to quantise it again, which costs quality. CheckpointError names a tensor that cannot be
    quantised, a target that is part of the source, and one that cannot be written (no folder, no room, no leave).
    """
    header = source if isinstance(source, GgufHeader) else read_header(source)
    target = Path(target)
    _check_target(header, target)
    chosen = tensor_types(mix, mixed_model(header), {name: info.shape for name, info in header.tensors.items()})
    plan = [PlannedTensor(name, chosen.get(name, info.type), info.shape) for name, info in header.tensors.items()]
    for tensor in plan:
        _check_source(header, header.tensors[tensor.name], tensor.type, requantise)
    with ExitStack() as files, np.errstate(all="ignore"):
        parts = [files.enter_context(_reopen(header, number)) for number in range(len(header.parts))]

        def data(tensor: PlannedTensor) -> Iterator[NDArray[np.uint8]]:
            info = header.tensors[tensor.name]
            if tensor.type is info.type:
                return _copied(header, parts[info.part], info)
            return _quantised(header, parts[info.part], info, tensor.type, threads)

        return rewrite_checkpoint(target, header, {"general.file_type": find_mix(mix).file_type}, plan, data)


def mixed_model(header: GgufHeader) -> MixedModel:
    """What the mixes need to know of a model, from its metadata; what it does not say counts as a small dense model's."""
    architecture = header.text("general.architecture") or ""
    layers = header.integer(f"{architecture}.block_count") or 0
    heads = _first(header, f"{architecture}.attention.head_count")
    kv_heads = _first(header, f"{architecture}.attention.head_count_kv", heads)
    return MixedModel(
        architecture,
        layers,
        experts=header.integer(f"{architecture}.expert_count") or 0,
        grouping=heads // kv_heads if kv_heads else 0,
        grouped=heads != kv_heads,
    )


def _first(header: GgufHeader, key: str, default: int = 0) -> int:
    """An integer, or the first of one a layer."""
    value = header.metadata.get(key)
    if isinstance(value, GgufArray):
        return value.integers()[0] if len(value) else default
    number = header.integer(key)
    return default if number is None else number


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_target(header: GgufHeader, target: Path) -> None:
    try:
        there = target.exists()
        if there and any(target.samefile(path) for path in header.paths):
            raise CheckpointError(f"{target} is the file to be quantised; name another target")
        if there and not target.is_file():
            raise CheckpointError(f"{target} is there, and is not a file; name another target")
    except (OSError, ValueError) as error:  # a name that is too long, or holds a zero byte
        raise CheckpointError(f"{target} cannot be written: {getattr(error, 'strerror', None) or error}") from error


def _check_source(header: GgufHeader, info: TensorInfo, kind: GgmlType, requantise: bool) -> None:
    if kind is info.type:
        return
    what = f"{header.path}: tensor {info.name}"
    try:
        quant = quant_type(info.type.name)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{what}: {error.message}") from error
    if not requantise and not isinstance(quant, FloatType):
        raise UnsupportedModel(
            f"{what} is {quant.name} already; quantising again costs quality: take a model in F16, BF16 or F32"
        )


# --- data -------------------------------------------------------------------------------------------------------------


def _reopen(header: GgufHeader, part: int) -> BinaryIO:
    file, identity = open_regular(header.paths[part])
    if identity != header.parts[part].identity:
        file.close()
        raise CheckpointError(f"{identity.path} has changed since its header was read")
    return file


def _copied(header: GgufHeader, file: BinaryIO, info: TensorInfo) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, info.nbytes, COPY_BYTES):
        yield _read(header, file, info.offset + start, min(COPY_BYTES, info.nbytes - start))


def _quantised(
    header: GgufHeader, file: BinaryIO, info: TensorInfo, kind: GgmlType, threads: int | None
) -> Iterator[NDArray[np.uint8]]:
    quant = quant_type(info.type.name)
    columns = info.shape[-1]
    row_bytes = quant.row_bytes(columns)
    rows = info.count // columns
    step = max(1, SLAB_WEIGHTS // columns)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        slab = _read(header, file, info.offset + start * row_bytes, count * row_bytes)
        try:
            yield quantise(quant.dequantize_numpy(slab.reshape(count, row_bytes)), kind.name, threads=threads)
        except ValueError as error:
            raise CheckpointError(
                f"{header.path}: tensor {info.name} cannot be {kind.name}, in rows {start} to {start + count - 1}: {error}"
            ) from error


def _read(header: GgufHeader, file: BinaryIO, offset: int, count: int) -> NDArray[np.uint8]:
    """Bytes of a file that its header says are there; CheckpointError when it was cut short since."""
    data = np.empty(count, np.uint8)
    view, done = data.data, 0
    file.seek(offset)
    while done < count:
        read = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not read:
            raise CheckpointError(f"{header.path} was cut short while it was being read")
        done += read
    return data
