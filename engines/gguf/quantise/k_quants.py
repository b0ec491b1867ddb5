"""Encoding the K-quants: 256 weights a block, whose groups' scales (and minima) are themselves quantised.

Each encoder takes float32 ``[blocks, 256]`` and gives uint8 ``[blocks, block bytes]``. It searches the groups' scales
(``search.py``), rounds them under the block's float16 factors, and then rounds the weights against what those will be read
back as. Under a scale that comes out as 0 all codes mean the same; they are written as 0.

Layouts are those that ``engines/gguf/quants`` takes apart. Source: ``quantize_row_q*_K_ref`` of ggml-quants.c.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from engines.gguf.quantise.factors import factor_bytes, float16_factors
from engines.gguf.quantise.search import SMALLEST, AffineSearch, fit_affine, fit_signed, fit_signed_by_steps

__all__ = ["encode_q2_k", "encode_q3_k", "encode_q4_k", "encode_q5_k", "encode_q6_k"]

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Factors = NDArray[np.float16]

PAIR: Final = np.uint8(2)  # bits
NIBBLE: Final = np.uint8(4)
LOW_PAIR: Final = np.uint8(3)  # masks
LOW_NIBBLE: Final = np.uint8(15)

Q2_SEARCH: Final = AffineSearch(top=3, first=-0.5, step=0.1, candidates=16, absolute=True)
Q4_SEARCH: Final = AffineSearch(top=15, first=-1.0, step=0.1, candidates=21, absolute=False)
Q5_SEARCH: Final = AffineSearch(top=31, first=-0.5, step=0.1, candidates=16, absolute=False)


def encode_q2_k(blocks: Floats) -> Bytes:
    """Q2_K; errors count by the size of the weight."""
    x = _columns(blocks, 16)
    scales, minima = fit_affine(x, np.abs(x), Q2_SEARCH)
    d, scale_codes = _under_largest(scales.reshape(-1, 16), 15)
    dmin, minimum_codes = _under_largest(minima.reshape(-1, 16), 15)
    codes = _affine_codes(x, d, scale_codes, dmin, minimum_codes, Q2_SEARCH.top)
    packed = scale_codes.astype(np.uint8) | (minimum_codes.astype(np.uint8) << 4)
    return np.concatenate([packed, _pack_pairs(codes), factor_bytes(d), factor_bytes(dmin)], axis=1)


def encode_q3_k(blocks: Floats) -> Bytes:
    """Q3_K."""
    x = _columns(blocks, 16)
    d, scale_codes = _under_extreme(fit_signed_by_steps(x, 4).reshape(-1, 16), 32)
    codes = _signed_codes(x, d, scale_codes, 4)
    thirds = np.packbits((codes >> 2).reshape(-1, 8, 32), axis=1, bitorder="little").reshape(-1, 32)
    scales = (scale_codes + 32).astype(np.uint8)
    low = (scales[:, :8] & 15) | ((scales[:, 8:] & 15) << 4)
    upper = scales.reshape(-1, 4, 4) >> 4  # bits 2 i and 2 i + 1 of the last four bytes are those of group 4 i + byte
    high = upper[:, 0] | (upper[:, 1] << 2) | (upper[:, 2] << 4) | (upper[:, 3] << 6)
    return np.concatenate([thirds, _pack_pairs(codes & LOW_PAIR), low, high, factor_bytes(d)], axis=1)


def encode_q4_k(blocks: Floats) -> Bytes:
    """Q4_K; errors count by the size of the weight above the group's root mean square."""
    head, codes = _encode_32(blocks, Q4_SEARCH)
    return np.concatenate([head, _pack_nibbles(codes)], axis=1)


def encode_q5_k(blocks: Floats) -> Bytes:
    """Q5_K; errors count as in Q4_K."""
    head, codes = _encode_32(blocks, Q5_SEARCH)
    fifths = np.packbits((codes >> 4).reshape(-1, 8, 32), axis=1, bitorder="little").reshape(-1, 32)
    return np.concatenate([head, fifths, _pack_nibbles(codes & LOW_NIBBLE)], axis=1)


def encode_q6_k(blocks: Floats) -> Bytes:
    """Q6_K."""
    x = _columns(blocks, 16)
    d, scale_codes = _under_extreme(fit_signed(x, 32).reshape(-1, 16), 128)
    codes = _signed_codes(x, d, scale_codes, 32)
    low = (codes & 15).reshape(-1, 2, 2, 64)  # halves of 128, of which the first 64 are low nibbles
    packed = low[:, :, 0] | (low[:, :, 1] << 4)
    return np.concatenate(
        [
            packed.reshape(-1, 128),
            _pack_pairs(codes >> NIBBLE),
            scale_codes.astype(np.int8).view(np.uint8),
            factor_bytes(d),
        ],
        axis=1,
    )


def _encode_32(blocks: Floats, search: AffineSearch) -> tuple[Bytes, Bytes]:
    """The 16 bytes that Q4_K and Q5_K begin with, and the codes ``[blocks, 256]``."""
    x = _columns(blocks, 32)
    sizes = np.sqrt((x * x).sum(axis=0) / np.float32(32)) + np.abs(x)
    scales, minima = fit_affine(x, sizes, search)
    d, scale_codes = _under_largest(scales.reshape(-1, 8), 63)
    dmin, minimum_codes = _under_largest(minima.reshape(-1, 8), 63)
    codes = _affine_codes(x, d, scale_codes, dmin, minimum_codes, search.top)
    scale, minimum = scale_codes.astype(np.uint8), minimum_codes.astype(np.uint8)
    packed = [
        scale[:, :4] | ((scale[:, 4:] >> 4) << 6),
        minimum[:, :4] | ((minimum[:, 4:] >> 4) << 6),
        (scale[:, 4:] & 15) | ((minimum[:, 4:] & 15) << 4),
    ]
    return np.concatenate([factor_bytes(d), factor_bytes(dmin), *packed], axis=1), codes


# --- scales -----------------------------------------------------------------------------------------------------------


def _under_largest(values: Floats, top: int) -> tuple[Factors, Floats]:
    """Values that are not negative, ``[blocks, groups]``, as a float16 factor ``[blocks]`` times codes from 0 to ``top``."""
    largest = np.maximum(values.max(axis=1), np.float32(0))
    inverse = np.where(largest > 0, np.float32(top) / largest, np.float32(0))
    codes = np.clip(np.rint(inverse[:, None] * values), 0, top)
    return float16_factors(largest / np.float32(top)), codes


def _under_extreme(values: Floats, half: int) -> tuple[Factors, Floats]:
    """The same for values of either sign: codes from -``half`` to ``half`` - 1, the largest value in size at -``half``."""
    extreme = values[np.arange(len(values)), np.abs(values).argmax(axis=1)]
    zero = np.abs(extreme) < SMALLEST
    inverse = np.where(zero, np.float32(0), np.float32(-half) / extreme)
    codes = np.clip(np.rint(inverse[:, None] * values), -half, half - 1)
    return float16_factors(np.where(zero, np.float32(0), 1 / inverse)), codes


def _group_factors(factor: Factors, codes: Floats) -> Floats:
    return (factor.astype(np.float32)[:, None] * codes).reshape(-1)


# --- codes ------------------------------------------------------------------------------------------------------------


def _affine_codes(x: Floats, d: Factors, scales: Floats, dmin: Factors, minima: Floats, top: int) -> Bytes:
    scale = _group_factors(d, scales)
    codes = x + _group_factors(dmin, minima)
    codes /= scale
    np.rint(codes, out=codes)
    np.clip(codes, 0, top, out=codes)
    codes[:, scale == 0] = 0
    return _rows(codes)


def _signed_codes(x: Floats, d: Factors, scales: Floats, half: int) -> Bytes:
    scale = _group_factors(d, scales)
    codes = x / scale
    np.rint(codes, out=codes)
    np.clip(codes, -half, half - 1, out=codes)
    codes += np.float32(half)
    codes[:, scale == 0] = 0
    return _rows(codes)


# --- layout -----------------------------------------------------------------------------------------------------------


def _columns(blocks: Floats, group: int) -> Floats:
    """``[blocks, 256]`` as groups in columns: ``[group, blocks × 256 / group]``."""
    return np.ascontiguousarray(blocks.reshape(-1, group).T)


def _rows(codes: Floats) -> Bytes:
    """Whole numbers with groups in columns, back as ``[blocks, 256]``."""
    return np.ascontiguousarray(codes.astype(np.uint8).T).reshape(-1, 256)


def _pack_pairs(codes: Bytes) -> Bytes:
    """Codes of two bits: ``[blocks, 256]`` to ``[blocks, 64]``."""
    planes = codes.reshape(-1, 2, 4, 32)
    packed: Bytes = (
        planes[:, :, 0] | (planes[:, :, 1] << PAIR) | (planes[:, :, 2] << NIBBLE) | (planes[:, :, 3] << (PAIR + NIBBLE))
    )
    return packed.reshape(len(codes), 64)


def _pack_nibbles(codes: Bytes) -> Bytes:
    """Codes of four bits: ``[blocks, 256]`` to ``[blocks, 128]``."""
    planes = codes.reshape(-1, 4, 2, 32)
    packed: Bytes = planes[:, :, 0] | (planes[:, :, 1] << NIBBLE)
    return packed.reshape(len(codes), 128)
