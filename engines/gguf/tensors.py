"""The tensors of a GGUF checkpoint as MLX arrays."""

from __future__ import annotations

import math
import mmap
import os
from pathlib import Path
from types import TracebackType

import mlx.core as mx
import numpy as np

from engines.errors import CheckpointError, UnsupportedModel
from engines.gguf.kernels.cpu import Extension, FileMapping, extension
from engines.gguf.quants import FloatType, QuantType, quant_type
from engines.header import FileIdentity, GgufHeader, TensorInfo

__all__ = ["TensorFile", "open_bytes"]

_FLOATS = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}


class TensorFile:
    """Reads tensors of a file, or of a set of parts, by name. A context manager; files are opened at first use.

    With the compiled CPU kernels, tensors are arrays over the file's own pages. MLX alone cannot keep foreign memory: then
    each tensor is copied once, out of a mapping, and the mapping's pages are dropped at once. Either way a loaded model holds
    its weights one time, and loading holds one more tensor than that at most. The device thread only.
    """

    def __init__(self, header: GgufHeader) -> None:
        self._header = header
        self._sources: dict[int, _CopiedFile | _KeptFile] = {}  # by part

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets the files go; arrays that were read stay."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()

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
        return self._source(info.part).read(info.offset, [*rows, quant.row_bytes(columns)])

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

    def _source(self, part: int) -> _CopiedFile | _KeptFile:
        source = self._sources.get(part)
        if source is None:
            source = self._sources[part] = open_bytes(self._header.parts[part].identity)
        return source


class _CopiedFile:
    """Copies of parts of a file."""

    def __init__(self, descriptor: int) -> None:
        self._mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)

    def read(self, offset: int, shape: list[int]) -> mx.array:
        length = math.prod(shape)
        array = mx.array(np.frombuffer(self._mapped, np.uint8, length, offset).reshape(shape))
        mx.eval(array)
        _drop_pages(self._mapped, offset, length)
        return array

    def close(self) -> None:
        self._mapped.close()


class _KeptFile:
    """Arrays over a file's pages, which they keep mapped.

    As with every program that maps its models: a file that is cut short while it serves ends the process.
    """

    def __init__(self, descriptor: int, compiled: Extension) -> None:
        self._mapped: FileMapping = compiled.Mapping.of_file(descriptor)

    def read(self, offset: int, shape: list[int]) -> mx.array:
        return self._mapped.bytes(offset, shape)

    def close(self) -> None:
        """Nothing to do: the pages go with the last array over them."""


def open_bytes(identity: FileIdentity) -> _CopiedFile | _KeptFile:
    """Opens a whole file for reading, if it is still the one whose header was read; ``read`` makes arrays, which outlive it."""
    compiled = extension() if mx.default_device().type == mx.DeviceType.cpu else None
    try:
        with Path(identity.path).open("rb") as file:
            status = os.fstat(file.fileno())
            if (status.st_size, status.st_mtime_ns) != (identity.size, identity.mtime_ns):
                raise CheckpointError(
                    f"{identity.path} was replaced or changed while it was being loaded; load it again"
                )
            return _CopiedFile(file.fileno()) if compiled is None else _KeptFile(file.fileno(), compiled)
    except OSError as error:
        raise CheckpointError(f"{identity.path} cannot be read: {error.strerror or error}") from error


def _drop_pages(mapped: mmap.mmap, offset: int, length: int) -> None:
    """Takes the pages of these bytes out of the process; they stay in the system's cache, and may be read again.

    Pages shared with a neighbour go too, since nothing is lost by it. Nothing happens where the system has no such call.
    """
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if advice is not None and length:
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(advice, start, offset + length - start)
