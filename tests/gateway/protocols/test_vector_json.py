"""Both forms of a vector hold the numbers that came."""

from __future__ import annotations

import base64
import json
import math
import struct

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from engines.wire import Vectors
from gateway.protocols.vector_json import base64_of, joined, numbers_of

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def part(first: int, dims: int, numbers: list[float]) -> Vectors:
    data = struct.pack(f"<{len(numbers)}f", *numbers)
    return Vectors(request_id=1, first=first, dims=dims, data=data, tokens=(1,) * (len(numbers) // dims))


@given(st.lists(st.tuples(FLOATS, FLOATS, FLOATS), min_size=1, max_size=5))
def test_numbers_and_base64_are_the_same_float32(vectors: list[tuple[float, ...]]) -> None:
    sent = part(0, 3, [number for vector in vectors for number in vector])
    read = json.loads(msgspec.json.encode(joined([numbers_of(sent)])))
    decoded = [struct.unpack("<3f", base64.b64decode(text)) for text in base64_of(sent)]
    assert [tuple(vector) for vector in read] == vectors == decoded
    signs = [[math.copysign(1, number) for number in vector] for vector in vectors]
    assert [[math.copysign(1, number) for number in vector] for vector in read] == signs


def test_joined_parts_are_one_array() -> None:
    assert bytes(joined([[1, 2], [], [3]])) == b"[1,2,3]"
    assert bytes(joined([])) == b"[]"
