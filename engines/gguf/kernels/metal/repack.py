"""K-quant blocks as MLX's affine format: weight = scale × code + bias, a scale and a bias for each 32 weights.

Types whose groups are of 32 keep their codes; only their scales are rounded, to the dtype that is asked for (float32: exact).
The others (Q2_K, Q3_K, Q6_K, IQ2_S, IQ2_XS, IQ1_M, NVFP4: groups of 16, which the format does not have) are quantised anew with
bits to spare. Codes of IQ types are what their grids say, of up to 8 bits. Memory is
what it costs: with float16 scales a weight takes its bits and one more, 5.0 bits for Q4_K where the block takes 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from engines.gguf.quants import BlockType

__all__ = ["AffineWeights", "repack"]

GROUP: Final = 32
# Bits a code, and what is added to make it unsigned.
_KEPT: Final = {
    "Q4_0": (4, 8),
    "Q4_1": (4, 0),
    "Q5_0": (5, 16),
    "Q5_1": (5, 0),
    "Q8_0": (8, 128),
    "Q4_K": (4, 0),
    "Q5_K": (5, 0),
    "IQ4_NL": (8, 127),
    "IQ4_XS": (8, 127),
    "IQ3_S": (5, 15),
    "IQ3_XXS": (8, 62),
    "IQ2_XXS": (8, 43),
    "IQ1_S": (5, 9),
    "TQ1_0": (2, 1),
    "TQ2_0": (2, 1),
    "MXFP4": (5, 12),
}
_ANEW: Final = {"Q2_K": 6, "Q3_K": 8, "Q6_K": 8, "IQ2_S": 8, "IQ2_XS": 8, "IQ1_M": 8, "NVFP4": 8}
_TILE_WEIGHTS = 1 << 20  # taken apart at a time: eight bytes a weight and more are in flight


@dataclass(frozen=True)
class AffineWeights:
    """Arguments of MLX's quantised product: ``packed`` uint32, ``scales`` and ``biases`` [rows, columns / 32]."""

    packed: mx.array
    scales: mx.array
    biases: mx.array
    bits: int

    @property
    def nbytes(self) -> int:
        return int(self.packed.nbytes + self.scales.nbytes + self.biases.nbytes)

    def multiply(self, x: mx.array, transpose: bool) -> mx.array:
        """x times the (transposed) weights, in the dtype of x."""
        scales, biases = self.scales.astype(x.dtype), self.biases.astype(x.dtype)
        return mx.quantized_matmul(
            x, self.packed, scales, biases, transpose=transpose, group_size=GROUP, bits=self.bits
        )

    def dequantize(self) -> mx.array:
        """The weights, [rows, columns] in the dtype of the scales."""
        return mx.dequantize(self.packed, self.scales, self.biases, group_size=GROUP, bits=self.bits)


def repack(blocks: mx.array, quant: BlockType, dtype: mx.Dtype = mx.float16) -> AffineWeights:
    """``blocks`` [rows, row bytes] with scales in ``dtype``, computed at once."""
    step = max(1, _TILE_WEIGHTS // quant.columns(blocks.shape[1]))
    parts = [_tile(blocks[at : at + step], quant, dtype) for at in range(0, blocks.shape[0], step)]
    packed, scales, biases = (mx.concatenate(list(arrays)) for arrays in zip(*parts, strict=True))
    mx.eval(packed, scales, biases)
    return AffineWeights(packed, scales, biases, _KEPT[quant.name][0] if quant.name in _KEPT else _ANEW[quant.name])


def _tile(blocks: mx.array, quant: BlockType, dtype: mx.Dtype) -> tuple[mx.array, mx.array, mx.array]:
    if quant.name in _KEPT:
        packed, scales, biases = _kept(blocks, quant)
    else:
        packed, scales, biases = mx.quantize(quant.dequantize(blocks), GROUP, _ANEW[quant.name])
    tile = packed, scales.astype(dtype), biases.astype(dtype)
    mx.eval(tile)
    return tile


def _kept(blocks: mx.array, quant: BlockType) -> tuple[mx.array, mx.array, mx.array]:
    bits, lift = _KEPT[quant.name]
    codes, scales, offsets = quant.planes(quant.blocked(blocks), mx)
    rows = blocks.shape[0]
    scales = scales.reshape(rows, -1)
    biases = -lift * scales if offsets is None else offsets.reshape(rows, -1) - lift * scales
    unsigned = (mx.stack(list(codes), axis=-2).astype(mx.int32) + lift).astype(mx.uint8).reshape(rows, -1)
    # A code's bits follow the code before, lowest first, through the bytes.
    spread = (unsigned[..., None] >> mx.arange(bits, dtype=mx.uint8)) & 1
    weights = mx.array([1 << i for i in range(8)], mx.uint8)
    stream = (spread.reshape(rows, -1, 8) * weights).sum(axis=-1).astype(mx.uint8)
    return stream.view(mx.uint32), scales, biases
