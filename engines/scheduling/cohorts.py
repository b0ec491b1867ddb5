"""Batches of rows of like length, where one long row would waste the room of many.

A batch holds rows × its longest row, and reads as much in every step. Another batch costs one more pass over the weights a step.
So a row goes where it wastes least, and gets a batch of its own where even there the padding is more than a pass reads, or more
than memory has room for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engines.scheduling.admission import Decision, KvAdmission, KvCost

__all__ = ["MOST_COHORTS", "Placement", "mergeable", "padding_bytes", "place"]

MOST_COHORTS = 4  # each is a pass of its own in every step
_REJOIN = 0.5  # of what a pass reads: so much padding is no reason to stay apart


class Placement(NamedTuple):
    """``cohort`` is an index; the number of cohorts stands for a new one. It says nothing where the row is not admitted."""

    decision: Decision
    cohort: int


def padding_bytes(cost: KvCost, rows: Sequence[int]) -> int:
    """Bytes that a batch of rows of these lengths, in tokens, holds beyond what the rows alone do."""
    return cost.batch_bytes(rows) - sum(map(cost.row_bytes, rows))


def place(
    admission: KvAdmission,
    row: int,
    cohorts: Sequence[Sequence[int]],
    beside: int = 0,
    *,
    pass_bytes: int | None = None,
    most: int = MOST_COHORTS,
) -> Placement:
    """Where a row that grows to ``row`` tokens goes, beside cohorts of rows that grow to these lengths.

    1. Beside none: a new one.
    2. The cohort that pads least with it, if that is at most ``pass_bytes`` (what a step reads however few rows it has; None:
       not known, and only memory makes cohorts) and fits.
    3. Else a new one, if there may be one more and it fits.
    4. Else the one of 2, if it fits, whatever it pads.
    5. Else the row waits, or asks for growth.
    """
    if not cohorts:
        return Placement(admission.decide(row, [], beside), 0)
    padded = [padding_bytes(admission.cost, [*rows, row]) - padding_bytes(admission.cost, rows) for rows in cohorts]
    best = min(range(len(cohorts)), key=padded.__getitem__)
    joins = admission.fits_cohorts([[*rows, row] if i == best else rows for i, rows in enumerate(cohorts)], beside)
    if joins and (pass_bytes is None or padded[best] <= pass_bytes):
        return Placement(Decision.ADMIT, best)
    if len(cohorts) < most and admission.fits_cohorts([*cohorts, [row]], beside):
        return Placement(Decision.ADMIT, len(cohorts))
    if joins:
        return Placement(Decision.ADMIT, best)
    return Placement(Decision.WAIT if admission.fits([row]) else Decision.GROW, best)


def mergeable(
    admission: KvAdmission, cohorts: Sequence[Sequence[int]], beside: int = 0, *, pass_bytes: int | None = None
) -> tuple[int, int] | None:
    """The two cohorts that would pad least as one, first index first, if that is at most half a pass, and fits."""
    pairs = [(i, j) for j in range(len(cohorts)) for i in range(j)]
    if not pairs:
        return None

    def padded(pair: tuple[int, int]) -> int:
        merged = [*cohorts[pair[0]], *cohorts[pair[1]]]
        return padding_bytes(admission.cost, merged) - sum(padding_bytes(admission.cost, cohorts[i]) for i in pair)

    i, j = min(pairs, key=padded)
    others = [rows for k, rows in enumerate(cohorts) if k not in (i, j)]
    if padded((i, j)) > _REJOIN * (pass_bytes or 0):
        return None
    return (i, j) if admission.fits_cohorts([*others, [*cohorts[i], *cohorts[j]]], beside) else None
