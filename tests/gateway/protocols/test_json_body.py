"""Bodies that are not one clear JSON object are 400s, quickly."""

from __future__ import annotations

import json
import time
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import InvalidRequest, RequestTooLarge
from gateway.protocols.json_body import MAX_DEPTH, decode_object

# Of this process's own time, for what takes a quarter of a second and minutes where it is quadratic. The suite's process has
# many objects, through which the garbage collector goes when a body has many lists.
LINEAR_S = 20.0


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is empty"),
        (b" \n", "the body is empty"),
        (b"{", "not valid JSON"),
        (b'{"a": 1} x', "not valid JSON"),
        (b"[]", "not an array"),
        (b'"x"', "not a string"),
        (b"null", "not null"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": 123456789012345678901234567890}', "64 bits"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"b": {"a": 1, "a": 1}}', "twice"),
        (b'{"a": "\xff"}', "UTF-8 at byte 7"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udc00": 1}', "surrogate"),
        (b'{"a": ["x", {"b": "\\ud83d"}]}', "surrogate"),
        (b'\xef\xbb\xbf{"a": 1}', "not valid JSON"),
        (b'{"a": ' + b"[" * 101 + b"]" * 101 + b"}", "deeper than 100"),
        (b'{"a": ' + b"[" * 100_000 + b"}", "deeper than 100"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "deeper than 100"),
    ],
)
def test_decode_refuses(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        decode_object(body)


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        (b'{"model": "m", "seed": 1180591620717411303424}', "seed", "seed is 1180591620717411303424…; it must be"),
        (b'{"top_p": NaN}', "top_p", "top_p is NaN, which is not JSON"),
        (b'{"options": {"min_p": -1e999}}', "options.min_p", "options.min_p is -1e999, which is out of range"),
        (b'{"a": {"x": [1, [2]]}, "b": [{"c": [0, 1e400]}], "d": NaN}', "b[0].c[1]", r"b\[0\].c\[1\] is 1e400"),
        (b"[[1, Infinity]]", "[0][1]", "Infinity"),
        (b'{"\\udc00": 1e999}', "\\udc00", "out of range"),
        (b"NaN", None, "the body is NaN"),
    ],
)
def test_decode_names_the_field_of_a_number_it_refuses(body: bytes, param: str | None, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says) as refusal:
        decode_object(body)
    assert refusal.value.param == param


def test_decode_finds_a_number_in_deep_nesting_and_among_many() -> None:
    with pytest.raises(InvalidRequest, match=r"a\[0\]\[0\].* is NaN"):
        decode_object(b'{"a": ' + b"[" * 90 + b"NaN" + b"]" * 90 + b"}")
    began = time.process_time()
    with pytest.raises(InvalidRequest, match=r"a\[300000\] is NaN"):
        decode_object(b'{"a": [' + b"[]," * 300_000 + b"NaN]}")
    assert time.process_time() - began < LINEAR_S


def test_decode_names_a_field_among_many_in_deep_nesting_in_little_memory() -> None:
    deep, many = 300, 20_000
    body = (b'{"' + b"k" * 100 + b'": ') * deep + b"[" + b"[]," * many + b"NaN]" + b"}" * deep
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match=r"k\[20000\] is NaN") as refusal:
            decode_object(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20 << 20
    assert refusal.value.param is not None and len(refusal.value.param) < 500


def test_decode_long_digits_take_no_time() -> None:
    began = time.process_time()
    with pytest.raises(InvalidRequest):
        decode_object(b'{"a": ' + b"9" * 4_000_000 + b"}")
    assert time.process_time() - began < LINEAR_S


def test_decode_finds_a_repeated_key_among_many_at_once() -> None:
    keys = ", ".join(f'"k{i}": 1' for i in range(100_000))
    began = time.process_time()
    with pytest.raises(InvalidRequest, match="'k99999' twice"):
        decode_object(f'{{{keys}, "k99999": 2}}'.encode())
    assert time.process_time() - began < LINEAR_S


def test_decode_refuses_more_values_than_allowed_before_it_decodes_them() -> None:
    assert decode_object(b'{"a": [1, 2, 3]}', max_values=2) == {"a": [1, 2, 3]}
    with pytest.raises(RequestTooLarge, match="more than 2 values"):
        decode_object(b'{"a": [1, 2, 3, and what is no JSON', max_values=2)


def test_decode_takes_depth_up_to_the_limit_and_pairs_of_surrogates() -> None:
    inner = b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)
    assert decode_object(b'{"a": ' + inner + b', "b": [[],[],{}]}')["b"] == [[], [], {}]
    assert decode_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "😀"}


SCALARS = st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.floats(-1e9, 1e9) | st.none() | st.booleans()
NESTED = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


@given(st.dictionaries(st.text(max_size=5), NESTED, max_size=4))
def test_decode_agrees_with_json_and_crosses_to_a_worker(value: dict[str, object]) -> None:
    body = json.dumps(value).encode()
    decoded = decode_object(body)
    assert decoded == json.loads(body)
    msgspec.msgpack.encode(decoded)
