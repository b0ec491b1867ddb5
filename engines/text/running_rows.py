"""The rows that hold memory: those that decode, the one whose prompt is being read, and the prompt that is kept for siblings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from engines.text.cohorts import Cohorts
from engines.text.decoding_batch import DecodingBatch
from engines.text.prefill import Prefill
from engines.text.row import Row
from engines.text.shared_prompt import PromptShelf

__all__ = ["Lengths", "RunningRows"]


class Lengths(NamedTuple):
    """Of the rows that hold memory, batch by batch, in tokens: what they are projected to grow to, and what they hold now.

    A row whose prompt is being read counts in the batch that it is to join, and holds all of its prompt.
    """

    projected: list[list[int]]
    held: list[list[int]]

    @property
    def rows(self) -> int:
        return sum(map(len, self.held))


class RunningRows:
    """One for the life of a batcher.

    Attributes:
        cohorts: the rows that decode.
        prefill: the prompt that is being read.
        joins: the batch that its row is to join; None for a new one.
        joining: rows on their way: taken from the queue or read, and not in a batch yet.
        shelf: the prompt that is kept.
    """

    def __init__(self, cohorts: Cohorts) -> None:
        self.cohorts = cohorts
        self.prefill: Prefill | None = None
        self.joins: DecodingBatch | None = None
        self.joining: Sequence[Row] = ()
        self.shelf = PromptShelf()

    @property
    def some(self) -> bool:
        return self.prefill is not None or bool(self.cohorts.rows)

    @property
    def kv_bytes(self) -> int:
        """Bytes that their caches hold now, and the prompt that is kept."""
        return self.cohorts.kv_bytes + (0 if self.prefill is None else self.prefill.kv_bytes) + self.shelf.held_bytes

    @property
    def outlook(self) -> tuple[object, ...]:
        """What ``held`` and ``ends`` answer is another, in whole steps of the caches, only where this is."""
        reads = None if self.prefill is None else (self.prefill.row.id, len(self.prefill.row.tokens), id(self.joins))
        return self.cohorts.outlook, reads, None if self.shelf.prompt is None else len(self.shelf.prompt.tokens)

    @property
    def members(self) -> tuple[object, ...]:
        """Another whenever a row comes or goes."""
        return self.cohorts.version, None if self.prefill is None else self.prefill.row.id, self.shelf.prompt is None

    @property
    def deepest(self) -> int:
        """Tokens of the longest row now."""
        return max(0 if self.prefill is None else self.prefill.done, *self.cohorts.depths, 0)

    def lengths(self, projected: Callable[[Row], int], joining: Sequence[Row] = ()) -> Lengths:
        """Those of the rows, and of rows that are about to join with the one being read."""
        lengths = Lengths(self.cohorts.lengths(projected), self.held(joining))
        if coming := self._coming(joining):
            _append(lengths.projected, self._place, [projected(row) for row in coming])
        return lengths

    def held(self, joining: Sequence[Row] = ()) -> list[list[int]]:
        """See :class:`Lengths`."""
        held = self.cohorts.held
        if coming := self._coming(joining):
            _append(held, self._place, [len(row.tokens) for row in coming])
        return held

    def ends(self) -> list[list[int]]:
        """To which they grow at most."""
        ends = self.cohorts.ends
        if self.prefill is not None:
            _append(ends, self._place, [self.prefill.row.lengths.end])
        return ends

    def sizes(self) -> dict[int, int]:
        """The length of each row now, in tokens."""
        sizes = {row_id: live.length for row_id, live in self.cohorts.rows.items()}
        if self.prefill is not None:
            sizes[self.prefill.row.id] = self.prefill.done
        return sizes

    def join_at(self, place: int) -> None:
        """Names the batch to join by its index; the number of batches stands for a new one."""
        batches = self.cohorts.batches
        self.joins = batches[place] if place < len(batches) else None

    def take(self, row_id: int, waits_until: float | None = None) -> Row | None:
        """Lets a row go, as it may go on later; None where it is not here."""
        if self.prefill is not None and self.prefill.row.id == row_id:
            row, self.prefill = self.prefill.row, None
            return row
        return self.cohorts.leave(row_id).resuming(waits_until) if row_id in self.cohorts.rows else None

    def take_all(self) -> list[Row]:
        """Lets all go, with everything that is held; as they may go on later, those that joined first first."""
        rows = {live.row.id: live.resuming() for live in self.cohorts.clear()}
        for row in [*([] if self.prefill is None else [self.prefill.row]), *self.joining]:
            rows.setdefault(row.id, row)
        self.prefill = self.joins = None
        self.joining = ()
        self.shelf.clear()
        return [*rows.values()]

    @property
    def _place(self) -> int:
        batches = self.cohorts.batches
        return batches.index(self.joins) if self.joins in batches else len(batches)

    def _coming(self, joining: Sequence[Row]) -> list[Row]:
        return [*joining] if self.prefill is None else [self.prefill.row, *joining]


def _append(batches: list[list[int]], place: int, rows: list[int]) -> None:
    if place == len(batches):
        batches.append([])
    batches[place] = [*batches[place], *rows]
