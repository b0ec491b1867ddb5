"""The shapes a product kernel is compiled for, and the choice among them. Pure: no device is asked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engines.gguf.quants import QuantType

__all__ = ["DENSE_FROM", "Tile", "tile_for"]

UNIT = 256  # weights of a row that four lanes take at a time
_LINE = 16  # bytes the copy engine moves at least, and where its addresses begin

# Largest power of two that divides the address of every block of a type, up to a line.
_ALIGNMENT = {
    "Q2_K": 4,
    "Q3_K": 2,
    "Q4_K": 16,
    "Q5_K": 16,
    "Q6_K": 2,
    "Q4_0": 2,
    "Q4_1": 4,
    "Q5_0": 2,
    "Q5_1": 8,
    "Q8_0": 2,
}


@dataclass(frozen=True)
class Tile:
    """Template arguments of ``kq_product``, which explains them (``product.cuh``)."""

    columns: int  # NT: tiles of 8 rows of activations
    rows: int  # RT: tiles of 16 rows of weights a warp
    warps: int  # W: that share the columns
    stages: int  # of the ring in shared memory; 0: none
    units: int  # U: in a chunk
    narrowed: int  # XC: rows of activations brought to shared memory; 0: none

    @property
    def threads(self) -> int:
        return 32 * self.warps

    def for_columns(self, columns: int) -> Tile:
        """With no more warps than there are chunks."""
        chunks = -(-columns // (UNIT * self.units))
        warps = self.warps
        while warps > 1 and warps // 2 >= chunks:
            warps //= 2
        return replace(self, warps=warps)

    def shared_bytes(self, quant: QuantType) -> int:
        """Dynamic shared memory of a thread block: ``kq_layout``."""
        alignment = _ALIGNMENT[quant.name]
        unit_bytes = UNIT // quant.block_size * quant.block_bytes
        lines = (self.units * unit_bytes + (0 if alignment == _LINE else _LINE - alignment) + _LINE - 1) // _LINE
        ring = 16 * self.rows * (lines | 1) * _LINE * self.stages
        activations = self.narrowed * (2 * UNIT + _LINE)
        sums = self.warps * self.rows * self.columns * 128 * 4
        barriers = -(-self.warps * self.stages * 8 // 128) * 128
        return barriers + max(self.warps * (ring + activations), sums)


DENSE_FROM = 65
"""Rows of activations from which dequantising to scratch and a dense product is faster: 41 µs of dequantising are paid back."""

# So many row tiles keep an H200's 132 multiprocessors busy with four warps each; with fewer, more warps share the columns.
_MANY_TILES = 512


def tile_for(quant: QuantType, rows: int, columns: int, m: int, *, narrow: bool, bulk: bool = True) -> Tile:
    """The shape for m rows of activations, fewer than :data:`DENSE_FROM`; ``narrow``: they are bfloat16; ``bulk``: the device
    has a bulk copy engine (compute capability 9 on), which the ring needs.

    Measured on an H200 (``docs/gguf-gpu.md``) for the matrices of an 8B model. Aligned blocks are best read straight into
    registers, others through the ring; few activations are best brought to shared memory, where bfloat16 is made float16 once.
    """
    tiles = -(-rows // 16)
    many = tiles >= _MANY_TILES
    direct = _ALIGNMENT[quant.name] == _LINE
    stages = 0 if direct else 2
    if m == 1:
        few_warps = tiles >= 4 * _MANY_TILES if quant.name == "Q4_K" else many
        warps = 4 if few_warps else 8
        tile = Tile(1, 1, warps, 0, 1, 1) if direct else Tile(1, 1, warps, 1, 2, 1)
    elif m <= 8:
        tile = Tile(1, 1, 4 if many else 8, stages, 1, 8 if direct or narrow else 0)
    elif m <= 16:
        tile = Tile(2, 2, 4, 2, 1, 0) if many else Tile(2, 1, 8, 2, 1, 0)
    elif m <= 32:
        if direct:
            tile = Tile(4, 2, 2 if many else 8, 0, 1, 0) if tiles >= 128 else Tile(2, 1, 8, 0, 1, 0)
        else:
            tile = Tile(4, 2, 4, 2, 1, 0) if many else Tile(4, 1, 8, 2, 1, 0)
    else:
        tile = Tile(8, 2, 4, 2, 1, 0) if many else Tile(4, 1, 8, 2, 1, 0)
    if not bulk:
        tile = replace(tile, stages=0, units=1)
    return tile.for_columns(columns)
