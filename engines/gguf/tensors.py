"""The tensors of a GGUF checkpoint, copied into MLX one at a time."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from types import TracebackType

import mlx.core as mx
import numpy as np

from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.quants import FloatType, QuantType, quant_type
from engines.header import FileIdentity, GgufHeader, TensorInfo

__all__ = ["TensorFile"]

_FLOATS = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}


class TensorFile:
    """Reads tensors of a file, or of a set of parts, by name. A context manager; files are opened at first use.

    MLX cannot keep foreign memory, so each tensor is copied once, out of a mapping, and the mapping's pages are dropped at
    once: a loaded model holds its weights one time, and loading holds one more tensor than that at most. The device thread
    only.
    """

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self._maps: dict[int, mmap.mmap] = {}  # by part

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets the mappings go; arrays that were read stay."""
        for mapped in self._maps.values():
            mapped.close()
        self._maps.clear()

    def info(self, name: str) -> TensorInfo:
        """The tensor's entry. CheckpointError when there is none of this name."""
        info = self._header.tensors.get(name)
        if info is None:
            raise CheckpointError(f"{self._header.path} has no tensor {name}")
        return info

    def quant(self, name: str) -> QuantType:
        """The tensor's quant type. CheckpointError for an unknown name, UnsupportedModel for a type that is not supported."""
        info = self.info(name)
        try:
            return quant_type(info.type.name)
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{self._header.path}: tensor {name}: {error.message}") from error

    def blocks(self, name: str) -> mx.array:
        """The tensor as it lies in the file: uint8 [*rows, row bytes], [row bytes] for a vector.

        CheckpointError for an unknown name or a file that changed since its header was read; UnsupportedModel for a type that
        is not supported.
        """
        quant, info = self.quant(name), self.info(name)
        *rows, columns = info.shape or (1,)
        mapped = self._map(info.part)
        raw = np.frombuffer(mapped, np.uint8, info.nbytes, info.offset)
        array = mx.array(raw.reshape(*rows, quant.row_bytes(columns)))
        mx.eval(array)
        del raw
        _drop_pages(mapped, info.offset, info.nbytes)
        return array

    def floats(self, name: str) -> mx.array:
        """A tensor of floats in its own dtype: float32, float16 or bfloat16, of the tensor's shape.

        As :meth:`blocks`; UnsupportedModel also when the tensor is quantised.
        """
        quant = self.quant(name)
        if not isinstance(quant, FloatType):
            raise UnsupportedModel(f"{self._header.path}: tensor {name} is {quant.name} where floats are needed")
        array = self.blocks(name).view(_FLOATS[quant.name])
        mx.eval(array)
        return array

    def _map(self, part: int) -> mmap.mmap:
        mapped = self._maps.get(part)
        if mapped is None:
            mapped = self._maps[part] = _open(self._header.parts[part].identity)
        return mapped


def _open(identity: FileIdentity) -> mmap.mmap:
    """Maps a whole file for reading, if it is still the one whose header was read."""
    try:
        with Path(identity.path).open("rb") as file:
            status = os.fstat(file.fileno())
            if (status.st_size, status.st_mtime_ns) != (identity.size, identity.mtime_ns):
                raise CheckpointError(
                    f"{identity.path} was replaced or changed while it was being loaded; load it again"
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"{identity.path} cannot be read: {error.strerror}") from error


def _drop_pages(mapped: mmap.mmap, offset: int, length: int) -> None:
    """Takes the pages of these bytes out of the process; they stay in the system's cache, and may be read again.

    Pages shared with a neighbour go too, since nothing is lost by it. Nothing happens where the system has no such call.
    """
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if advice is not None and length:
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(advice, start, offset + length - start)
