"""``keep_alive``: how long a model stays after its last request.

A number of seconds, or a duration as Go writes it ("5m", "1h30m", "-1s"), which Ollama is written in; a number may be a string too.

Source: the package ``time`` of Go, ``ParseDuration``; Ollama's API documentation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from gateway.errors import InvalidRequest
from gateway.protocols.options import shown

__all__ = ["FOR_EVER_S", "read_keep_alive"]

FOR_EVER_S = 2**63 / 1e9
"""Go's longest duration, some 292 years: what is longer is for ever."""

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_AMOUNT = r"(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})"
_PART = re.compile(rf"({_AMOUNT})({'|'.join(_UNITS)})")
_DURATION = re.compile(rf"([+-]?)((?:{_AMOUNT}(?:{'|'.join(_UNITS)})){{1,16}})")
_NUMBER = re.compile(rf"[+-]?{_AMOUNT}")


def read_keep_alive(options: Mapping[str, Any]) -> float | None:
    """Seconds, None where absent; negative means for ever, 0 until the request ends."""
    value = options.get("keep_alive")
    if value is None:
        return None
    seconds = None
    if isinstance(value, str):
        seconds = _seconds(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    if seconds is None or not math.isfinite(seconds):
        message = f"keep_alive is {shown(value)}; it must be seconds, or a duration such as '5m' or '1h30m'"
        raise InvalidRequest(message, param="keep_alive")
    return -1.0 if seconds < 0 or seconds >= FOR_EVER_S else seconds


def _seconds(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    whole = _DURATION.fullmatch(text)
    if whole is None:
        return None
    seconds = sum(float(amount) * _UNITS[unit] for amount, unit in _PART.findall(whole[2]))
    return -seconds if whole[1] == "-" else seconds
