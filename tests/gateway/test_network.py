"""Names of hosts and origins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.network import is_loopback, same_origin, split_host


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("a.b:80", ("a.b", 80)),
        ("A.B.", ("a.b", None)),
        ("[::1]:8000", ("::1", 8000)),
        ("::1", ("::1", None)),
        ("a b", ("", None)),
        ("a:x", ("", None)),
        ("user@host", ("", None)),
    ],
)
def test_split_host(value: str, read: tuple[str, int | None]) -> None:
    assert split_host(value) == read


@pytest.mark.parametrize(
    "name", ["localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]", "::ffff:127.0.0.1", "a.localhost"]
)
def test_is_loopback_for_names_of_this_machine(name: str) -> None:
    assert is_loopback(name)


@pytest.mark.parametrize(
    "name", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "127.0.0.1.x", "notlocalhost"]
)
def test_is_loopback_for_no_other(name: str) -> None:
    assert not is_loopback(name)


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://a:8000", "a:8000", True),
        ("http://a", "a:80", True),
        ("https://a", "a", True),
        ("http://[::1]:8", "[::1]:8", True),
        ("http://a:8001", "a:8000", False),
        ("http://b:8000", "a:8000", False),
        ("null", "null", False),
        ("file://a", "a", False),
        ("http://a:99999", "a", False),
        ("http://[", "[", False),
    ],
)
def test_same_origin(origin: str, host: str, same: bool) -> None:
    assert same_origin(origin, host) is same


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_judged_without_error(origin: str, host: str) -> None:
    same_origin(origin, host)
    is_loopback(split_host(host)[0])
