"""``keep_alive`` in all the forms that clients write it in."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.protocols.ollama_duration import read_keep_alive


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (300, 300),
        (0.5, 0.5),
        (0, 0),
        ("0", 0),
        ("0s", 0),
        ("300", 300),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("+2m", 120),
        ("1m0.5s", 60.5),
        ("250ms", 0.25),
        ("10us", 1e-5),
        ("10µs", 1e-5),
        (-1, -1),
        (-300, -1),
        ("-1", -1),
        ("-1m", -1),
        ("99999999h", -1),  # longer than Go can say is for ever
    ],
)
def test_keep_alive_is_seconds(value: Any, seconds: float | None) -> None:
    read = read_keep_alive({} if value is None else {"keep_alive": value})
    assert read == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("value", ["", "5 m", "m", "5x", "1h-2m", "5m ", "nan", "inf", True, [], {}, "1" * 50])
def test_keep_alive_of_another_form_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="5m") as refusal:
        read_keep_alive({"keep_alive": value})
    assert refusal.value.param == "keep_alive"
