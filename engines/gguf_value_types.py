"""The types of values in a GGUF header: their ids in the file, their formats for :mod:`struct` and their sizes in bytes.

Source: the GGUF specification (docs/gguf.md of ggml), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import struct
from enum import IntEnum

__all__ = ["FORMATS", "LEAST_SIZES", "SIZES", "GgufValueType"]


class GgufValueType(IntEnum):
    """Type of a metadata value; the value is its id in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# Of the types whose values all have one size.
FORMATS: dict[GgufValueType, str] = {
    GgufValueType.UINT8: "B",
    GgufValueType.INT8: "b",
    GgufValueType.UINT16: "H",
    GgufValueType.INT16: "h",
    GgufValueType.UINT32: "I",
    GgufValueType.INT32: "i",
    GgufValueType.FLOAT32: "f",
    GgufValueType.BOOL: "B",
    GgufValueType.UINT64: "Q",
    GgufValueType.INT64: "q",
    GgufValueType.FLOAT64: "d",
}
SIZES: dict[GgufValueType, int] = {kind: struct.calcsize("<" + code) for kind, code in FORMATS.items()}
LEAST_SIZES: dict[GgufValueType, int] = {**SIZES, GgufValueType.STRING: 8, GgufValueType.ARRAY: 12}
