"""Encoding the types of 32 weights a block, and the float types: no search, the range alone decides.

Each encoder takes float32 ``[blocks, block size]`` and gives uint8 ``[blocks, block bytes]``, laid out as
``engines/gguf/quants`` takes it apart. Source: ``quantize_row_q*_ref`` of ggml-quants.c.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from engines.gguf.quantise.factors import factor_bytes, float16_factors
from engines.gguf.quantise.search import signed_extremes

__all__ = [
    "encode_bf16",
    "encode_f16",
    "encode_f32",
    "encode_q4_0",
    "encode_q4_1",
    "encode_q5_0",
    "encode_q5_1",
    "encode_q8_0",
]

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Factors = NDArray[np.float16]

BELOW_HALF: Final = np.nextafter(np.float32(0.5), np.float32(0))  # added to it, no number below a half reaches one


def encode_q4_0(blocks: Floats) -> Bytes:
    """Q4_0: the weight that is largest in size becomes code 0, that is -8."""
    d, codes = _symmetric(blocks, 8)
    return np.concatenate([factor_bytes(d), _pack_nibbles(codes)], axis=1)


def encode_q4_1(blocks: Floats) -> Bytes:
    """Q4_1: codes from the smallest to the largest weight."""
    d, low, codes = _range(blocks, 15)
    return np.concatenate([factor_bytes(d), factor_bytes(low), _pack_nibbles(codes)], axis=1)


def encode_q5_0(blocks: Floats) -> Bytes:
    """Q5_0, as Q4_0."""
    d, codes = _symmetric(blocks, 16)
    return np.concatenate([factor_bytes(d), _fifth_bits(codes), _pack_nibbles(codes & np.uint8(15))], axis=1)


def encode_q5_1(blocks: Floats) -> Bytes:
    """Q5_1, as Q4_1."""
    d, low, codes = _range(blocks, 31)
    return np.concatenate(
        [factor_bytes(d), factor_bytes(low), _fifth_bits(codes), _pack_nibbles(codes & np.uint8(15))], axis=1
    )


def encode_q8_0(blocks: Floats) -> Bytes:
    """Q8_0: codes -127 to 127; halves are rounded away from zero."""
    x = np.ascontiguousarray(blocks.T)
    d = np.abs(x).max(axis=0) / np.float32(127)
    x *= _inverse(d)
    x += np.copysign(BELOW_HALF, x)
    codes = np.ascontiguousarray(x.astype(np.int8).T)
    return np.concatenate([factor_bytes(float16_factors(d)), codes.view(np.uint8)], axis=1)


def encode_f32(blocks: Floats) -> Bytes:
    """F32."""
    return np.ascontiguousarray(blocks).view(np.uint8)


def encode_f16(blocks: Floats) -> Bytes:
    """F16, rounded to the nearest."""
    return float16_factors(np.ascontiguousarray(blocks)).view(np.uint8)


def encode_bf16(blocks: Floats) -> Bytes:
    """BF16, rounded to the nearest, to the even one of two."""
    bits = np.ascontiguousarray(blocks).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16).view(np.uint8)


def _symmetric(blocks: Floats, half: int) -> tuple[Factors, Bytes]:
    """Scales and codes 0 to 2 ``half`` - 1 around ``half``."""
    x = np.ascontiguousarray(blocks.T)
    d = signed_extremes(x) / np.float32(-half)
    x *= _inverse(d)
    x += np.float32(half + 0.5)
    return float16_factors(d), _codes(x, 2 * half - 1)


def _range(blocks: Floats, top: int) -> tuple[Factors, Factors, Bytes]:
    """Scales, smallest weights and codes 0 to ``top``."""
    x = np.ascontiguousarray(blocks.T)
    low = x.min(axis=0)
    d = (x.max(axis=0) - low) / np.float32(top)
    x -= low
    x *= _inverse(d)
    x += np.float32(0.5)
    return float16_factors(d), float16_factors(low), _codes(x, top)


def _codes(x: Floats, top: int) -> Bytes:
    np.minimum(x, np.float32(top), out=x)
    return np.ascontiguousarray(x.astype(np.uint8).T)  # the conversion drops the fraction


def _inverse(d: Floats) -> Floats:
    return np.where(d != 0, 1 / d, np.float32(0))


def _pack_nibbles(codes: Bytes) -> Bytes:
    return codes[:, :16] | (codes[:, 16:] << np.uint8(4))


def _fifth_bits(codes: Bytes) -> Bytes:
    return np.packbits(codes >> 4, axis=1, bitorder="little")
