"""From logits to tokens: the stages of one step, for the rows of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from engines.text.adjustments import LogitAdjustments, RowAdjustment
from engines.text.constraints.masks import ConstraintStage
from engines.text.constraints.row_constraint import RowConstraint
from engines.text.logprobs import LogprobReader
from engines.text.row import Row
from engines.text.sampling import SamplerPlan, SamplingParameters

__all__ = ["DrawStages", "RowDraw"]


@dataclass(eq=False)
class RowDraw:
    """How one row is drawn, and what its draws have changed so far. It stays with the row from join to leave."""

    parameters: SamplingParameters
    adjustment: RowAdjustment | None
    constraint: RowConstraint | None

    @classmethod
    def of(cls, row: Row) -> RowDraw:
        """For a row whose last token is the next input."""
        prompt_tokens = len(row.tokens) - row.answered
        adjusts = row.sampling.adjusts
        return cls(
            row.sampling,
            RowAdjustment(row.sampling, row.tokens[:-1], prompt_tokens) if adjusts else None,
            None if row.constraint is None else RowConstraint(row.constraint, row.tokens[prompt_tokens:]),
        )


class DrawStages:
    """``adjustments``, ``constraints``, ``sampler``, ``logprobs``: each does nothing for rows that do not ask for it.

    Made anew when a row joins or leaves.
    """

    def __init__(self, rows: Sequence[RowDraw]) -> None:
        self.rows = list(rows)
        parameters = [row.parameters for row in rows]
        self.adjustments = LogitAdjustments([row.adjustment for row in rows])
        self.constraints = ConstraintStage([row.constraint for row in rows])
        self.sampler = SamplerPlan(parameters)
        self.logprobs = LogprobReader(parameters)

    @property
    def follow_tokens(self) -> bool:
        """Whether some row's logits depend on the tokens before them, so that these must be known."""
        return self.adjustments.active or self.constraints.active

    def change(self, logits: mx.array, tokens: Sequence[int]) -> mx.array:
        """(rows, vocabulary) → what is drawn from. ``tokens`` are the last of each row, which the logits follow."""
        self.adjustments.push(tokens)
        self.constraints.push(tokens)
        adjusted = self.adjustments.apply(logits) if self.adjustments.active else logits
        return self.constraints.apply(adjusted)
