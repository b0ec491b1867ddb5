"""Vectors as JSON, without NumPy: lists of numbers, or base64 of their bytes.

The bytes are float32, little-endian, as the worker sent them. As JSON each number is the shortest that reads back as the same
float32 widened to 64 bits, so both forms hold the same numbers.
"""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from engines.wire import Vectors

__all__ = ["base64_of", "joined", "numbers_of"]

_encoder = msgspec.json.Encoder()


def numbers_of(part: Vectors) -> list[tuple[float, ...]]:
    """The vectors as numbers."""
    return list(struct.iter_unpack(f"<{part.dims}f", part.data))


def base64_of(part: Vectors) -> list[str]:
    """The vectors' bytes, each in base64."""
    size = 4 * part.dims
    return [
        b2a_base64(part.data[at : at + size], newline=False).decode("ascii") for at in range(0, len(part.data), size)
    ]


def joined(parts: Iterable[Sequence[Any]]) -> msgspec.Raw:
    """One JSON array of all parts' items. Encoded part by part: a thread that does so lets others run in between."""
    encoded = [_encoder.encode(part)[1:-1] for part in parts if part]
    return msgspec.Raw(b"[" + b",".join(encoded) + b"]")
