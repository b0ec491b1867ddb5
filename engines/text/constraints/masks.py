"""The tokens that rows of a batch may draw next, as a mask over logits."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from llguidance import LLExecutor
from llguidance.numpy import fill_next_token_bitmask, fill_next_token_bitmask_par
from numpy.typing import NDArray

from engines.gguf.kernels.blas.row_pool import usable_cores
from engines.text.constraints.bits import Bits
from engines.text.constraints.row_constraint import RowConstraint

__all__ = ["ConstraintStage"]

_CORES_TO_SHARE = (
    4  # with fewer, and the forward pass on them, handing rows to other threads takes longer than filling them
)

_EXECUTORS: list[LLExecutor] = []  # at most one, made when two rows first need it: it owns threads

# Of each byte of a mask, what is added to the logits of its eight tokens.
_ADDED = np.where(np.arange(256)[:, None] >> np.arange(8) & 1, 0.0, -np.inf).astype(np.float32)


class ConstraintStage:
    """The constraints of a batch; made anew when a row joins or leaves.

    Args:
        rows: each row's constraint in the batch's order, None for one that has none.
    """

    def __init__(self, rows: Sequence[RowConstraint | None]) -> None:
        self._rows = [(place, row) for place, row in enumerate(rows) if row is not None]
        self._count = len(rows)
        self._mask: _AddedMask | _SelectedMask | None = None

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
        if self._mask is None:
            on_cpu = mx.default_device().type == mx.DeviceType.cpu
            self._mask = (_AddedMask if on_cpu else _SelectedMask)(self._count, logits.shape[-1])
        words = -(-logits.shape[-1] // 32)
        bits = np.full((self._count, words), -1, np.int32)
        for (place, _), row_bits in zip(bound, _allowed([row for _, row in bound]), strict=True):
            kept = min(words, len(row_bits))
            bits[place, :kept], bits[place, kept:] = row_bits[:kept], 0
        return self._mask.apply(bits, logits)


def _allowed(rows: Sequence[RowConstraint]) -> NDArray[np.int32]:
    """(rows, words): the tokens that may come next, all rows' in one call."""
    bits = np.full((len(rows), -(-rows[0].vocabulary_size // 32)), -1, np.int32)
    matching = [(matcher, place) for place, row in enumerate(rows) if (matcher := row.matcher) is not None]
    if len(matching) == 1 or usable_cores() < _CORES_TO_SHARE:
        for matcher, place in matching:
            fill_next_token_bitmask(matcher, bits, place)
    elif matching:
        if not _EXECUTORS:
            _EXECUTORS.append(LLExecutor())
        fill_next_token_bitmask_par(_EXECUTORS[0], matching, bits)
    for row, row_bits in zip(rows, bits, strict=True):
        row.amend(row_bits)
    return bits


class _AddedMask:
    """For a CPU, where a sum takes a tenth of what a choice takes: 0 or ``-inf`` is added, looked up by bytes.

    Inside of a string the mask is the same token after token, so each row's is kept.
    """

    def __init__(self, rows: int, width: int) -> None:
        self._width = width
        self._bits: Bits = np.full((rows, -(-width // 32)), -1, np.int32)
        self._table = np.zeros((rows, self._bits.shape[1] * 4, 8), np.float32)
        self._added = mx.array(0.0)

    def apply(self, bits: Bits, logits: mx.array) -> mx.array:
        changed = np.flatnonzero((bits != self._bits).any(axis=1))
        for row in changed:
            np.take(_ADDED, bits[row].view(np.uint8), axis=0, out=self._table[row], mode="clip")
        if len(changed):
            self._bits = bits
            self._added = mx.array(self._table.reshape(len(bits), -1)[:, : self._width])
        return logits + self._added.astype(logits.dtype)


class _SelectedMask:
    """For a GPU, to which only the bits travel."""

    def __init__(self, rows: int, width: int) -> None:
        self._width = width
        self._places = mx.arange(32, dtype=mx.uint32)

    def apply(self, bits: Bits, logits: mx.array) -> mx.array:
        words = mx.array(bits.view(np.uint32))
        allowed = (words[:, :, None] >> self._places) & 1
        return mx.where(allowed.reshape(len(bits), -1)[:, : self._width] != 0, logits, -mx.inf)
