"""What the scanner lets through is JSON, and it lets JSON through."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.text.output.json_scanner import DEEPEST, JsonScanner, NotJson

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def scanned(pieces: list[str]) -> tuple[str, str, bool]:
    """The JSON, what was not read, and whether it is complete."""
    scanner, out = JsonScanner(), ""
    for index, piece in enumerate(pieces):
        at = 0
        while at < len(piece) and not scanner.done:
            at, more = scanner.scan(piece, at)
            out += more
        if scanner.done:
            return out, piece[at:] + "".join(pieces[index + 1 :]), True
    return out, "", False


@given(value=VALUES, ascii_=st.booleans(), indent=st.sampled_from([None, 2]), size=st.integers(1, 9))
def test_json_passes_unaltered_and_ends_where_it_ends(
    value: object, ascii_: bool, indent: int | None, size: int
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_, indent=indent)
    followed = text + " ]"
    pieces = [followed[at : at + size] for at in range(0, len(followed), size)]
    assert scanned(pieces) == (text, " ]", True)


@given(text=st.text(alphabet="{}[]\",:\\u0041ntrue-.5e \n'x", max_size=30), size=st.integers(1, 4))
def test_what_passes_is_json(text: str, size: int) -> None:
    try:
        out, _, complete = scanned([text[at : at + size] for at in range(0, len(text), size)])
    except NotJson:
        return
    if complete:
        json.loads(out)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"line\nbreak\tand \x01"', "line\nbreak\tand \x01"),
        (r'"\d+ \. C:\Users"', r"\d+ \. C:\Users"),
        (r'"it\'s"', "it's"),
        (r'"\u00e9 \uZZ \u12"', r"é \uZZ \u12"),
        ('"a\\\nb"', "a\\\nb"),
    ],
)
def test_slips_whose_meaning_is_plain_are_mended(text: str, value: str) -> None:
    for pieces in ([text], list(text)):
        out, _, complete = scanned(pieces)
        assert complete and json.loads(out) == value


@pytest.mark.parametrize(
    "text",
    ["{'a': 1}", "[1,]", "{,}", "{1: 2}", "[1 2]", '{"a" 1}', "}", "tru,", "[01]", "[NaN]", "[1.]", "[-]"],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    for pieces in ([text + " "], list(text + " ")):
        with pytest.raises(NotJson):
            scanned(pieces)


def test_depth_and_length_are_bounded() -> None:
    assert scanned(["[" * DEEPEST + "]" * DEEPEST])[2]
    with pytest.raises(NotJson):
        scanned(["[" * (DEEPEST + 1)])
    with pytest.raises(NotJson):
        scanned(["[" + "1" * 1000 + "]"])


def test_what_stops_being_json_is_told_up_to_there() -> None:
    scanner = JsonScanner()
    assert scanner.scan('{"a": x', 0) == (6, '{"a": ')
    with pytest.raises(NotJson):
        scanner.scan('{"a": x', 6)
