"""What every quant type is: how a row of weights lies in a file's bytes, and how to read it back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

__all__ = ["BlockType", "FloatType", "Planes", "QuantType", "bits", "gathered", "half", "words"]


class QuantType(ABC):
    """One way to store a row of weights: a sequence of equal blocks, each ``block_size`` weights in ``block_bytes`` bytes.

    Instances have no state; there is one of each, in :data:`engines.gguf.quants.table.QUANT_TYPES`.
    """

    name: ClassVar[str]
    ggml_id: ClassVar[int]
    block_size: ClassVar[int]  # weights
    block_bytes: ClassVar[int]

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of ``columns`` weights. ValueError unless whole blocks make the row."""
        if columns % self.block_size:
            raise ValueError(f"a {self.name} row is whole blocks of {self.block_size} weights; {columns} are not")
        return columns // self.block_size * self.block_bytes

    def columns(self, row_bytes: int) -> int:
        """Weights in a row of ``row_bytes`` bytes. ValueError unless whole blocks make the row."""
        if row_bytes % self.block_bytes:
            raise ValueError(f"a {self.name} row is whole blocks of {self.block_bytes} bytes; {row_bytes} are not")
        return row_bytes // self.block_bytes * self.block_size

    @abstractmethod
    def dequantize_numpy(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        """uint8 ``[..., row bytes]`` to float32 ``[..., columns]``."""

    @abstractmethod
    def dequantize(self, blocks: mx.array) -> mx.array:
        """uint8 ``[..., row bytes]`` to float32 ``[..., columns]``, bit for bit as :meth:`dequantize_numpy`; lazy."""

    def __repr__(self) -> str:
        return f"<quant type {self.name}>"


class Planes(NamedTuple):
    """Blocks taken apart, so that weight = scale × code + offset, with one scale a group of neighbouring weights.

    ``codes`` is int8 or uint8, one array a *plane*, each ``[..., blocks, chunks, length]``. Planes are how the format packs
    codes side by side into bytes: weight ``(chunk × planes + plane) × length + i`` of a block is
    ``codes[plane][..., chunk, i]``. Whole planes are cheap to take apart, since a few operations on long arrays make each.

    ``scales`` and ``offsets`` are float32 ``[..., blocks, groups]``, in the order of the weights; ``offsets`` is None for
    types without one. NumPy or MLX arrays alike.
    """

    codes: tuple[Any, ...]
    scales: Any
    offsets: Any


class BlockType(QuantType):
    """A type of integer codes under scales. A subclass says how a block comes apart; the rest follows.

    The formula is written once for both array libraries: ``xp`` is ``numpy`` or ``mlx.core``, of which a subclass uses what
    is the same in both (slices, shifts, ``stack``, ``reshape``, ``astype``, ``view``) and the functions below. The float32
    product is rounded before the offset is added, as in the reference: no fused multiply-add.
    """

    @abstractmethod
    def planes(self, blocks: Any, xp: Any) -> Planes:
        """Takes uint8 ``[..., blocks, block bytes]`` apart."""

    def blocked(self, rows: Any) -> Any:
        """uint8 ``[..., row bytes]`` seen as ``[..., blocks, block bytes]``."""
        blocks = self.columns(rows.shape[-1]) // self.block_size
        return rows.reshape(*rows.shape[:-1], blocks, self.block_bytes)

    def dequantize_numpy(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        weights: NDArray[np.float32] = self._weights(rows, np)
        return weights

    def dequantize(self, blocks: mx.array) -> mx.array:
        weights: mx.array = self._weights(blocks, mx)
        return weights

    def _weights(self, rows: Any, xp: Any) -> Any:
        codes, scales, offsets = self.planes(self.blocked(rows), xp)
        group_size = self.block_size // scales.shape[-1]
        weights = xp.stack(codes, axis=-2).reshape(*scales.shape, group_size).astype(xp.float32)
        weights *= scales[..., None]
        if offsets is not None:
            weights += offsets[..., None]
        return weights.reshape(*rows.shape[:-1], self.columns(rows.shape[-1]))


class FloatType(QuantType):
    """A type that stores each weight as a float; a block is one weight."""

    block_size = 1


def gathered(field: Any, xp: Any) -> Any:
    """A field of each block (a slice of the last axis), moved together for the operations that follow.

    NumPy copies and computes in inner loops as long as the last axis, which is only a few bytes here: the field is copied as
    one item, and what follows runs over one long array. MLX does well with the slice.
    """
    if xp is np:
        return np.ascontiguousarray(field.view(f"V{field.shape[-1]}")).view(np.uint8)
    return field


def words(field: Any, xp: Any) -> Any:
    """A field of 4-byte little-endian words of each block: uint8 ``[..., 4 n]`` to uint32 ``[..., n]``."""
    return gathered(field, xp).view(xp.uint32)


def half(blocks: Any, at: int, xp: Any) -> Any:
    """The float16 at byte ``at`` of each block as float32 ``[..., blocks, 1]``."""
    return blocks[..., at : at + 2].view(xp.float16).astype(xp.float32)


def bits(field: Any, xp: Any) -> Any:
    """Bit i of a field of each block, counted from the lowest of its first byte, as 0 or 1: ``[..., n]`` to ``[..., 8 n]``."""
    if xp is np:
        packed = gathered(field, np)
        return np.unpackbits(packed.reshape(-1), bitorder="little").reshape(*field.shape[:-1], 8 * field.shape[-1])
    spread = mx.stack([(field >> i) & 1 for i in range(8)], axis=-1)
    return spread.reshape(*field.shape[:-1], 8 * field.shape[-1])
