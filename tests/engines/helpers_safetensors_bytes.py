"""safetensors files byte by byte."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence

_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1, "U32": 4, "I64": 8}


def raw(header: bytes, data: bytes = b"") -> bytes:
    """A file with this header, whatever it holds."""
    return struct.pack("<Q", len(header)) + header + data


def safetensors(tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str] | None = None) -> bytes:
    """A file of zeros: names to dtype and shape."""
    table: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * _BYTES[dtype]
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    return raw(json.dumps(table).encode(), bytes(end))
