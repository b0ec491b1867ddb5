"""From logits to tokens: the stages of one step, for the rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.text.adjustments import LogitAdjustments, RowAdjustment
from engines.text.logprobs import LogprobReader
from engines.text.row import Row
from engines.text.sampling import SamplerPlan, SamplingParameters

__all__ = ["DrawStages", "RowDraw"]


@dataclass(eq=False)
class RowDraw:
    """How one row is drawn, and what its draws have changed so far. It stays with the row from join to leave."""

    parameters: SamplingParameters
    adjustment: RowAdjustment | None

    @classmethod
    def of(cls, row: Row) -> RowDraw:
        """For a row whose last token is the next input."""
        adjusts = row.sampling.adjusts
        return cls(
            row.sampling,
            RowAdjustment(row.sampling, row.tokens[:-1], len(row.tokens) - row.answered) if adjusts else None,
        )


class DrawStages:
    """``adjustments``, then ``sampler``, then ``logprobs``: each does nothing for rows that do not ask for it.

    Made anew when a row joins or leaves.
    """

    def __init__(self, rows: Sequence[RowDraw]) -> None:
        self.rows = list(rows)
        parameters = [row.parameters for row in rows]
        self.adjustments = LogitAdjustments([row.adjustment for row in rows])
        self.sampler = SamplerPlan(parameters)
        self.logprobs = LogprobReader(parameters)
