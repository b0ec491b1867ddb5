"""The rows that decode: in one batch, or in several of like lengths where one long row would waste it.

Which row goes where says ``engines.scheduling.cohorts``; here it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import mlx.core as mx
from mlx_lm.generate import StopSequences

from engines.scheduling.admission import KV_STEP
from engines.text.cache_room import share
from engines.text.decoding_batch import DecodingBatch
from engines.text.draws import RowDraw
from engines.text.live_row import LiveRow
from engines.text.logprobs import PendingScore
from engines.text.row import Row, RowEvent, RowFailed, RowToken

__all__ = ["Cohorts"]


class Cohorts:
    """Batches of rows that decode, and their rows in the order in which they joined. Never an empty batch.

    ``version`` rises whenever a row joins or leaves.

    Args:
        model: (rows, n) uint32 ids → (rows, n, vocabulary) logits; ``cache`` grows by n.
        eos_ids: a row that draws one of them has finished.
        runs_ahead: see :class:`DecodingBatch`.
        told: called with a row and the time at each of its tokens, before ``said`` has it.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        model: Any,
        eos_ids: frozenset[int],
        *,
        runs_ahead: bool,
        told: Callable[[LiveRow, float], None],
        clock: Callable[[], float],
    ) -> None:
        self.rows: dict[int, LiveRow] = {}
        self.batches: list[DecodingBatch] = []
        self._model = model
        self._stop_sequences = StopSequences([[token] for token in sorted(eos_ids)])
        self._runs_ahead = runs_ahead
        self._told = told
        self._clock = clock
        self.version = 0
        self._measured: tuple[tuple[int, ...], int] = (), 0
        self._ends: tuple[int, list[list[int]]] = -1, []

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def depths(self) -> list[int]:
        """Of each batch, the tokens of its longest row in the caches."""
        return [max(map(len, batch.tokens)) for batch in self.batches]

    @property
    def shape(self) -> tuple[int, ...]:
        """What the caches hold is another only where this is."""
        return self.version, *((depth - 1) // KV_STEP for depth in self.depths)

    @property
    def outlook(self) -> tuple[int, ...]:
        """What the next step makes of them is another only where this is, in whole steps of the caches."""
        return self.version, *(depth // KV_STEP for depth in self.depths)

    @property
    def kv_bytes(self) -> int:
        """Bytes their caches hold now."""
        shape = self.shape
        if shape != self._measured[0]:
            total = sum(cache.nbytes for batch in self.batches for cache in batch.prompt_cache)
            self._measured = shape, cast(int, total)
        return self._measured[1]

    def lengths(self, projected: Callable[[Row], int]) -> list[list[int]]:
        """For each batch the lengths to which its rows grow, in tokens; never less than the next step makes of them."""
        return [
            [
                max(projected(self.rows[row_id].row), len(tokens) + 1)
                for row_id, tokens in zip(batch.uids, batch.tokens, strict=True)
            ]
            for batch in self.batches
        ]

    @property
    def held(self) -> list[list[int]]:
        """As ``lengths``, of what the next step makes of them alone; all rows of a batch take what its longest does."""
        return [[depth + 1] * len(batch.uids) for depth, batch in zip(self.depths, self.batches, strict=True)]

    @property
    def ends(self) -> list[list[int]]:
        """As ``lengths``, of what they grow to at most."""
        if self._ends[0] != self.version:
            self._ends = self.version, self.lengths(lambda row: row.lengths.end)
        return [*self._ends[1]]

    def next_step(self) -> tuple[int, int, int] | None:
        """Of the batch whose caches take the next step: the ticks until then, its rows, and the tokens allocated for each now.

        A row that ends before makes no step; None where none will.
        """
        steps = []
        for batch, ends in zip(self.batches, self.ends, strict=True):
            lengths = [*map(len, batch.tokens)]
            allocated = -(-max(lengths) // KV_STEP) * KV_STEP
            ticks = [allocated - length for length, end in zip(lengths, ends, strict=True) if end > allocated]
            if ticks:
                steps.append((min(ticks), len(lengths), allocated))
        return min(steps, default=None)

    # --- joining ---

    def join(self, rows: Sequence[Row], cache: list[Any], batch: DecodingBatch | None, events: list[RowEvent]) -> None:
        """Rows of one prompt begin to decode in a batch, None for a new one.

        All their tokens but the last are in the cache, of as many rows.
        """
        self.version += 1
        self.rows |= {row.id: LiveRow(row) for row in rows}
        share(cache)
        joining = DecodingBatch(
            self._model,
            [row.id for row in rows],
            mx.array([row.tokens[-1] for row in rows], dtype=mx.uint32),
            cache,
            [list(row.tokens[:-1]) for row in rows],
            [RowDraw.of(row) for row in rows],
            None,  # no sampler to fall back to
            [[] for _ in rows],
            [self._stop_sequences for _ in rows],
            [row.max_tokens for row in rows],
            runs_ahead=self._runs_ahead,
        )
        if not self._runs_ahead:
            self._report(joining, events)
        if not joining.uids:
            return
        if batch is None:
            self.batches.append(joining)
        else:
            batch.extend(joining)

    def merge(self, first: DecodingBatch, second: DecodingBatch) -> None:
        """The rows of the second batch join the first, and it is gone."""
        self.version += 1
        self.batches.remove(second)
        first.extend(second)

    # --- decoding ---

    def settle(self) -> None:
        """Waits for what was dispatched ahead, so that what comes next is timed alone."""
        for batch in self.batches:
            batch.settle()

    def step(self, events: list[RowEvent]) -> None:
        """The next token of every row."""
        for batch in tuple(self.batches):
            self._report(batch, events)
            if not batch.uids:
                self.batches.remove(batch)

    def _report(self, batch: DecodingBatch, events: list[RowEvent]) -> None:
        """The next token of each row of a batch; rows that end with it, or cannot go on, have left the batch."""
        constraints = batch.constraints()
        failed = set[int]()
        responses = batch.next()
        now = self._clock()
        for response in responses:
            uid = response.uid
            finish = cast(Literal["stop", "length"] | None, response.finish_reason)
            failure = constraints[uid].failure if uid in constraints else None
            pending = cast(PendingScore | None, response.logprobs)
            score = pending.read() if pending else None
            live = self.rows[uid]
            if finish is not None or failure is not None:
                del self.rows[uid]
                self.version += 1
            # A token that was drawn before the failure is good, but only the last one is worth telling.
            if failure is not None and (finish is None or not self._runs_ahead):
                failed.add(uid)
                events.append(RowFailed(uid, failure))
                continue
            self._told(live, now)
            live.said_at = now
            live.said.append(response.token)
            events.append(RowToken(uid, response.token, finish, score))
        if failed:
            batch.filter([i for i, uid in enumerate(batch.uids) if uid not in failed])

    # --- leaving ---

    def leave(self, row_id: int) -> LiveRow:
        """Takes a row out; its caches' room is free when this returns."""
        self.version += 1
        live = self.rows[row_id]
        batch = next(batch for batch in self.batches if row_id in batch.uids)
        if len(batch.uids) == 1:
            self.batches.remove(batch)
        else:
            batch.filter([i for i, uid in enumerate(batch.uids) if uid != row_id])
        del self.rows[row_id]
        return live

    def clear(self) -> list[LiveRow]:
        """Lets every row and all caches go; the rows in the order in which they joined."""
        self.version += 1
        rows = [*self.rows.values()]
        self.rows.clear()
        self.batches.clear()
        return rows
