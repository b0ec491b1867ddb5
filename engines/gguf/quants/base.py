"""What every quant type is: how a row of weights lies in a file's bytes, and how to read it back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

__all__ = ["BlockType", "FloatType", "QuantType", "Split", "half", "nibbles"]


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


class Split(NamedTuple):
    """Blocks taken apart, so that weight = scale × code + offset, with one scale a group of neighbouring weights.

    ``codes`` is int8 or uint8 ``[..., blocks, groups, group size]`` in the order of the weights; ``scales`` and ``offsets``
    are float32 ``[..., blocks, groups]``; ``offsets`` is None for types without one. NumPy or MLX arrays alike.
    """

    codes: Any
    scales: Any
    offsets: Any


class BlockType(QuantType):
    """A type of integer codes under scales. A subclass says how a block comes apart; the rest follows.

    The formula is written once for both array libraries: ``xp`` is ``numpy`` or ``mlx.core``, of which a subclass uses what
    is the same in both (slices, shifts, ``stack``, ``concatenate``, ``reshape``, ``astype``, ``view``). The float32
    product is rounded before the offset is added, as in the reference: no fused multiply-add.
    """

    @abstractmethod
    def split(self, blocks: Any, xp: Any) -> Split:
        """Takes uint8 ``[..., blocks, block bytes]`` apart."""

    def blocked(self, rows: Any) -> Any:
        """uint8 ``[..., row bytes]`` seen as ``[..., blocks, block bytes]``."""
        self.columns(rows.shape[-1])
        return rows.reshape(*rows.shape[:-1], -1, self.block_bytes)

    def dequantize_numpy(self, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        codes, scales, offsets = self.split(self.blocked(rows), np)
        weights = codes.astype(np.float32)
        weights *= scales[..., None]
        if offsets is not None:
            weights += offsets[..., None]
        flat: NDArray[np.float32] = weights.reshape(*rows.shape[:-1], -1)
        return flat

    def dequantize(self, blocks: mx.array) -> mx.array:
        codes, scales, offsets = self.split(self.blocked(blocks), mx)
        weights = codes.astype(mx.float32) * scales[..., None]
        if offsets is not None:
            weights = weights + offsets[..., None]
        return mx.flatten(weights, -3)


class FloatType(QuantType):
    """A type that stores each weight as a float; a block is one weight."""

    block_size = 1


def half(blocks: Any, at: int, xp: Any) -> Any:
    """The float16 at byte ``at`` of each block as float32 ``[..., blocks, 1]``."""
    return blocks[..., at : at + 2].view(xp.float16).astype(xp.float32)


def nibbles(packed: Any, xp: Any) -> Any:
    """Low nibbles, then high ones: uint8 ``[..., n]`` to ``[..., 2, n]``."""
    return xp.stack([packed & 15, packed >> 4], axis=-2)
