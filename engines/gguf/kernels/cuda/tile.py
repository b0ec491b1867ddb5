"""The shapes a product kernel is compiled for, and the choice among them. Pure: no device is asked."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

from engines.gguf.quants import QuantType

__all__ = ["DENSE_FROM", "Tile", "gated_tile", "tile_for"]

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
    "IQ4_NL": 2,
    "IQ4_XS": 8,
    # Read byte by byte, or shifted out of words whatever the address.
    **dict.fromkeys(("MXFP4", "NVFP4", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS"), 1),
    **dict.fromkeys(("IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0"), 1),
}


@dataclass(frozen=True)
class Tile:
    """Template arguments of ``kq_tile``, which explains them (``accumulate.cuh``)."""

    columns: int  # NT: tiles of 8 rows of activations
    rows: int  # RT: tiles of 16 rows of weights a warp
    parties: int  # W: that share the columns
    members: int  # R: warps of a party
    stages: int  # of the ring in shared memory; 0: none
    units: int  # U: in a chunk
    narrowed: int  # XC: rows of activations brought to shared memory; 0: none

    @property
    def threads(self) -> int:
        return 32 * self.parties * self.members

    @property
    def height(self) -> int:
        """Rows of weights a thread block."""
        return 16 * self.rows * self.members

    @property
    def source(self) -> str:
        """As the kernels' source names it."""
        return f"kq_tile<{', '.join(map(str, astuple(self)))}>"

    @property
    def label(self) -> str:
        return "_".join(map(str, astuple(self)))

    def shared_bytes(self, quant: QuantType) -> int:
        """Dynamic shared memory of a thread block: ``kq_layout``."""
        alignment = _ALIGNMENT[quant.name]
        unit_bytes = UNIT // quant.block_size * quant.block_bytes
        lines = (self.units * unit_bytes + (0 if alignment == _LINE else _LINE - alignment) + _LINE - 1) // _LINE
        ring = 16 * self.rows * (lines | 1) * _LINE * self.stages
        activations = self.narrowed * (2 * UNIT + _LINE)
        warps = self.parties * self.members
        sums = warps * self.rows * self.columns * 128 * 4
        barriers = -(-warps * self.stages * 8 // 128) * 128
        return barriers + max(warps * (ring + activations), sums)


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
        tile = Tile(1, 1, warps, 1, 0, 1, 1) if direct else Tile(1, 1, warps, 1, 1, 2, 1)
    elif m <= 8:
        tile = Tile(1, 1, 4 if many else 8, 1, stages, 1, 8 if direct or narrow else 0)
    elif m <= 16:
        tile = Tile(2, 2, 4, 1, 2, 1, 0) if many else Tile(2, 1, 8, 1, 2, 1, 0)
    elif m <= 32:
        if direct:
            tile = Tile(4, 2, 2 if many else 8, 1, 0, 1, 0) if tiles >= 128 else Tile(2, 1, 8, 1, 0, 1, 0)
        else:
            tile = Tile(4, 2, 4, 1, 2, 1, 0) if many else Tile(4, 1, 8, 1, 2, 1, 0)
    else:
        tile = Tile(8, 2, 4, 1, 2, 1, 0) if many else Tile(4, 1, 8, 1, 2, 1, 0)
    if not bulk:
        tile = replace(tile, stages=0, units=1)
    return _for_columns(tile, columns)


def gated_tile(quant: QuantType, rows: int, columns: int, m: int, *, narrow: bool, bulk: bool = True) -> Tile:
    """The shape for two matrices of so many rows together: :func:`tile_for`, half of its warps for each."""
    tile = tile_for(quant, 2 * rows, columns, m, narrow=narrow, bulk=bulk)
    return replace(tile, parties=max(1, tile.parties // 2), members=2)


def _for_columns(tile: Tile, columns: int) -> Tile:
    """With no more parties than there are chunks."""
    chunks = -(-columns // (UNIT * tile.units))
    parties = tile.parties
    while parties > 1 and parties // 2 >= chunks:
        parties //= 2
    return replace(tile, parties=parties)
