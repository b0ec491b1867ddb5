"""Values a registry file may hold where YAML has no type for them: byte sizes and percentages.

``12GiB``, ``1.5 GB``, ``512MiB`` or a whole number of bytes. ``KiB`` to ``TiB`` count in 1024s; ``KB`` to ``TB`` in 1000s.
"""

from __future__ import annotations

import re

__all__ = ["ByteSize", "Percentage", "ValueProblem", "format_bytes", "parse_budget", "parse_bytes"]

_UNITS = {
    "": 1,
    "b": 1,
    **{unit + "ib": 1024**power for power, unit in enumerate("kmgt", start=1)},
    **{unit + "b": 1000**power for power, unit in enumerate("kmgt", start=1)},
}
_NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)"  # longer ones are no sizes, and int() and float() have limits of their own
_SIZE = re.compile(rf"\s*{_NUMBER}\s*([A-Za-z]*)\s*")
_PERCENT = re.compile(rf"\s*{_NUMBER}\s*%\s*")


class ValueProblem(ValueError):
    """A value that cannot be read; the message says what is allowed."""


class ByteSize(int):
    """A number of bytes, at least 1."""


class Percentage(float):
    """More than 0 and at most 100."""


def parse_bytes(value: object) -> ByteSize:
    """A size as written in a registry file. ValueProblem says what is allowed."""
    allowed = "a size such as 12GiB, 800MiB or a whole number of bytes, at least 1"
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueProblem(f"expected {allowed}")
    if isinstance(value, int):
        count = value
    else:
        match = _SIZE.fullmatch(value)
        unit = match and _UNITS.get(match[2].lower())
        if not match or not unit:
            raise ValueProblem(f"expected {allowed}")
        count = int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if not 1 <= count < 2**63:
        raise ValueProblem(f"expected {allowed}")
    return ByteSize(count)


def parse_budget(value: object) -> ByteSize | Percentage | None:
    """``auto`` (None), a percentage of the device's memory, or a size."""
    if value == "auto":
        return None
    if isinstance(value, str) and (match := _PERCENT.fullmatch(value)):
        percent = float(match[1])
        if not 0 < percent <= 100:
            raise ValueProblem("expected a percentage above 0 and at most 100")
        return Percentage(percent)
    try:
        return parse_bytes(value)
    except ValueProblem:
        raise ValueProblem("expected auto, a percentage such as 80%, or a size such as 12GiB") from None


def format_bytes(count: int) -> str:
    """A size for people: ``253.1 MiB``, exact below 1 KiB."""
    if abs(count) < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if abs(size) < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"
