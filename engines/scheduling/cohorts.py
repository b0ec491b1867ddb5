"""Batches of rows of like length, where one long row would waste the room of many.

A batch holds rows × its longest row. A second batch saves what the short rows would be padded by, and costs a pass over the
weights a tick; so there are few, and only where much is saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engines.scheduling.admission import Decision, KvAdmission

__all__ = ["MOST_COHORTS", "WASTE_SHARE", "Placement", "mergeable", "place"]

MOST_COHORTS = 3
WASTE_SHARE = 1 / 8  # of the grant: what padding may take before another batch is worth its passes


class Placement(NamedTuple):
    """``cohort`` is an index; that of the last and one for a new one. It says nothing where the row is not admitted."""

    decision: Decision
    cohort: int


def place(
    admission: KvAdmission, row: int, cohorts: Sequence[Sequence[int]], beside: int = 0, most: int = MOST_COHORTS
) -> Placement:
    """Where a row that grows to ``row`` tokens goes, beside cohorts of rows that grow to these lengths.

    1. Without a grant, or alone: the first cohort.
    2. The cohort that wastes least with it, if that is at most WASTE_SHARE of the grant and fits.
    3. Else a new one, if there may be one more and it fits.
    4. Else the one of 2, if only it fits, whatever it wastes.
    5. Else the row waits, or asks for growth.
    """
    if admission.grant_bytes is None or not cohorts:
        return Placement(admission.decide(row, [], beside), 0)
    best = min(range(len(cohorts)), key=lambda i: _waste(admission, row, cohorts[i]))
    joined = [[*rows, row] if i == best else rows for i, rows in enumerate(cohorts)]
    joins = admission.fits_cohorts(joined, beside)
    if joins and _waste(admission, row, cohorts[best]) <= WASTE_SHARE * admission.grant_bytes:
        return Placement(Decision.ADMIT, best)
    if len(cohorts) < most and admission.fits_cohorts([*cohorts, [row]], beside):
        return Placement(Decision.ADMIT, len(cohorts))
    if joins:
        return Placement(Decision.ADMIT, best)
    return Placement(Decision.WAIT if admission.fits([row]) else Decision.GROW, best)


def mergeable(admission: KvAdmission, cohorts: Sequence[Sequence[int]], beside: int = 0) -> tuple[int, int] | None:
    """Two cohorts that may become one again: together they waste at most half of what would part them, and fit."""
    for first in range(len(cohorts)):
        for second in range(first + 1, len(cohorts)):
            merged = [*cohorts[first], *cohorts[second]]
            rest = [rows for i, rows in enumerate(cohorts) if i not in (first, second)]
            apart = admission.projected_bytes(cohorts[first]) + admission.projected_bytes(cohorts[second])
            waste = admission.projected_bytes(merged) - apart
            allowed = None if admission.grant_bytes is None else WASTE_SHARE / 2 * admission.grant_bytes
            if (allowed is None or waste <= allowed) and admission.fits_cohorts([*rest, merged], beside):
                return first, second
    return None


def _waste(admission: KvAdmission, row: int, rows: Sequence[int]) -> int:
    """Bytes that a batch takes more with this row than the two take apart."""
    cost = admission.cost
    return cost.batch_bytes([*rows, row]) - cost.batch_bytes(rows) - cost.row_bytes(row)
