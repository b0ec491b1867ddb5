"""Weights that are looked up: the grids of the IQ types, their signs, and 4-bit codes that stand for uneven steps."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any, Final

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

__all__ = ["E2M1", "IQ4", "fields", "grid", "looked_up", "negated", "with_eighth"]

Table = NDArray[np.int8]

IQ4: Final[Table] = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""What the codes of IQ4_NL and IQ4_XS stand for."""

_E2M1: Final = (0, 1, 2, 3, 4, 6, 8, 12)
E2M1: Final[Table] = np.array([*_E2M1, *(-each for each in _E2M1)], np.int8)
"""Twice what the codes of MXFP4 and NVFP4 stand for: one sign bit, two of exponent, one of mantissa."""

_IQ2: Final[Table] = np.array([8, 25, 43], np.int8)
"""What the fields of IQ2's grids stand for."""

# The values of the fields; those of 4 weights have 3 bits each, the others 2.
_VALUES: Final[dict[str, Table]] = {
    "iq2_xxs": _IQ2,
    "iq2_xs": _IQ2,
    "iq2_s": _IQ2,
    "iq1": np.array([-1, 0, 1], np.int8),
    "iq3_xxs": np.array([4, 12, 20, 28, 36, 44, 52, 62], np.int8),
    "iq3_s": np.arange(1, 16, 2, dtype=np.int8),
}


@cache
def grid(name: str) -> Table:
    """int8 [entries, 8], or [entries, 4] of IQ3: the table of this name of ``grids.h``."""
    text = files(__package__).joinpath("grids.h").read_text(encoding="utf-8")
    found = re.search(rf"kq_grid_{name}\[\d+\] = \{{([^}}]*)\}}", text)
    assert found is not None
    packed = np.array([int(each) for each in found[1].split(",")], np.uint16)
    values = _VALUES[name]
    bits, count = (3, 4) if len(values) == 8 else (2, 8)
    return np.ascontiguousarray(values[packed[:, None] >> np.arange(0, bits * count, bits) & (1 << bits) - 1])


@cache
def _masks() -> Table:
    """int8 [256, 8]: -1 where the bit of the byte is set, else 0."""
    return -(np.arange(256)[:, None] >> np.arange(8) & 1).astype(np.int8)


def looked_up(table: Table, index: Any, xp: Any) -> Any:
    """``table`` [entries, width] at unsigned ``index`` [...]: int8 [..., width]; of a table [entries], [...]."""
    if xp is not np:
        return mx.array(table)[index]
    if table.ndim == 1:
        return table[index]
    words = table.view(f"u{table.shape[1]}")[:, 0]  # an entry is moved as one item
    return words[index][..., None].view(np.int8)


def negated(codes: Any, signs: Any, xp: Any) -> Any:
    """int8 codes [..., 8 n], negative where the bit in uint8 ``signs`` [..., n] is set, the lowest of a byte first."""
    mask = looked_up(_masks(), signs, xp).reshape(codes.shape)
    return (codes ^ mask) - mask


def with_eighth(seven: Any, xp: Any) -> Any:
    """Signs of 8 weights from 7 bits of each: the eighth makes their number even. Unsigned [...] to uint8."""
    odd = seven ^ (seven >> 4)
    odd = odd ^ (odd >> 2)
    odd = (odd ^ (odd >> 1)) & 1
    return (seven | (odd << 7)).astype(xp.uint8)


def fields(packed: Any, bits: int, count: int, xp: Any) -> Any:
    """The ``count`` fields of so many bits from the lowest on of each unsigned number: [..., n] to [..., n × count]."""
    shifts = xp.arange(0, bits * count, bits, dtype=packed.dtype)
    return ((packed[..., None] >> shifts) & ((1 << bits) - 1)).reshape(*packed.shape[:-1], packed.shape[-1] * count)
