"""How many rows of which length a model could serve in a budget, on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from engines.footprint import Footprint

__all__ = ["Fit", "RowFit", "fit_of"]

LENGTHS: Final = (2048, 8192, 32768, 131072)  # tokens


@dataclass(frozen=True)
class RowFit:
    """``rows`` of ``tokens`` tokens fit beside the weights; None where rows take no memory."""

    tokens: int
    kv_bytes: int  # a row
    rows: int | None


@dataclass(frozen=True)
class Fit:
    """``left_bytes`` is the budget less the weights; negative when they alone are too many."""

    budget_bytes: int
    left_bytes: int
    lengths: tuple[RowFit, ...]

    @property
    def fits(self) -> bool:
        """Whether the model can be loaded and serve one row of the shortest length."""
        return self.left_bytes >= 0 and all(row.rows != 0 for row in self.lengths[:1])


def fit_of(footprint: Footprint, budget_bytes: int) -> Fit:
    """For the usual lengths that its context has, and for the whole context."""
    left = budget_bytes - footprint.static_bytes
    context = footprint.context or LENGTHS[-1]
    lengths = []
    for tokens in sorted({min(length, context) for length in (*LENGTHS, context)}):
        kv_bytes = footprint.kv_bytes(tokens)
        lengths.append(RowFit(tokens, kv_bytes, max(0, left) // kv_bytes if kv_bytes else None))
    return Fit(budget_bytes, left, tuple(lengths))
