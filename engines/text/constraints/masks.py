"""The tokens that rows of a batch may draw next, as a mask over logits."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from llguidance import LLExecutor
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray

from engines.text.constraints.row_constraint import RowConstraint

__all__ = ["ConstraintStage"]

_EXECUTORS: list[LLExecutor] = []  # at most one, made when two rows first need it: it owns threads


class ConstraintStage:
    """The constraints of a batch; made anew when a row joins or leaves.

    Args:
        rows: each row's constraint in the batch's order, None for one that has none.
    """

    def __init__(self, rows: Sequence[RowConstraint | None]) -> None:
        self._rows = [(place, row) for place, row in enumerate(rows) if row is not None]
        self._count = len(rows)

    @property
    def active(self) -> bool:
        """False where no row is bound, or will be, and nothing need be done."""
        return any(row.active for _, row in self._rows)

    def push(self, tokens: Sequence[int]) -> None:
        """The next token of each row of the batch, which the coming logits follow."""
        for place, row in self._rows:
            row.push(tokens[place])

    def apply(self, logits: mx.array) -> mx.array:
        """(rows, vocabulary) → the same, ``-inf`` where a row may not go on; ``logits`` itself stays as it is.

        Rows that are free keep all of their logits. A model may have more logits than its vocabulary has tokens: nothing is
        drawn there by a row that is bound.
        """
        bound = [(place, row) for place, row in self._rows if row.binds]
        if not bound:
            return logits
        allowed = np.ones((self._count, logits.shape[-1]), np.bool_)
        places = [place for place, _ in bound]
        bits = self._bits([row for _, row in bound])
        tokens = min(bound[0][1].vocabulary_size, logits.shape[-1])
        allowed[places, :tokens] = np.unpackbits(bits.view(np.uint8), axis=1, count=tokens, bitorder="little")
        allowed[places, tokens:] = False
        return mx.where(mx.array(allowed), logits, -mx.inf)

    def _bits(self, rows: Sequence[RowConstraint]) -> NDArray[np.int32]:
        """(rows, words): bit ``t % 32`` of word ``t // 32`` says whether token ``t`` may come."""
        bits = np.full((len(rows), -(-rows[0].vocabulary_size // 32)), -1, np.int32)
        matching = [(matcher, place) for place, row in enumerate(rows) if (matcher := row.matcher) is not None]
        if len(matching) == 1:
            fill_next_token_bitmask(matching[0][0], bits, matching[0][1])
        elif matching:
            if not _EXECUTORS:
                _EXECUTORS.append(LLExecutor())
            fill_next_token_bitmask_par(_EXECUTORS[0], matching, bits)
        for place, row in enumerate(rows):
            row.amend(bits[place])
        return bits
