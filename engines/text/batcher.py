"""Rows that join, decode together and leave: mlx-lm's own batches, driven directly.

A row waits by priority (``reception.py``), is prefilled in a one-row batch of its own, chunk by chunk, and then joins the rows
that decode (``cohorts.py``). One call of ``step`` is one tick: rows are started, or a chunk prefilled, or a token decoded for
each row. Rows may be submitted and cancelled between any two ticks.

Where kernels are lazy the batch runs one token ahead: when a token is reported, the next is already drawn. A row that leaves
early loses that token; one that is preempted draws the same one again when it resumes, since a draw depends only on the
row's seed and the token's position.

Siblings, rows of one prompt, read it once: those that can start when it has been read join together with copies of its cache,
and it is kept for the others while the grant has room.

Where memory comes to its end rows give way, and go on later from what they have said; so they do after a memory error, which
costs every cache (``memory_watch.py``). A row that the KV grant could not hold even alone is passed over: ``growth`` says what
it lacks, and a larger grant or a denial ends its wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engines.scheduling.admission import KvAdmission
from engines.scheduling.cohorts import mergeable
from engines.scheduling.pacing import Pacer
from engines.text.cohorts import Cohorts
from engines.text.memory_error import is_memory_error
from engines.text.memory_watch import MemoryWatch
from engines.text.prefill import Prefill, prompt_scores
from engines.text.reception import Company, Reception
from engines.text.row import Row, RowEvent, RowRead, RowStarted
from engines.text.row_times import RowTimes
from engines.text.running_rows import RunningRows
from engines.text.shared_prompt import SharedPrompt

__all__ = ["Batcher", "LanguageModel", "can_batch"]

_MERGE_EVERY = 64  # decode ticks: batches may have come near each other
_CLEAR_CACHE_EVERY = 512  # decode ticks; MLX keeps the buffers of every shape the growing caches had

log = logging.getLogger("innkeeper.worker")


class LanguageModel(Protocol):
    """An mlx-lm model: (rows, n) uint32 ids → (rows, n, vocabulary) logits; ``cache`` has one entry a layer and grows by n."""

    def __call__(self, inputs: mx.array, /, cache: list[Any]) -> mx.array: ...


def can_batch(model: LanguageModel) -> bool:
    """Whether every layer's cache can hold several rows. One that cannot means a width of 1."""
    return all(hasattr(cache, "merge") for cache in make_prompt_cache(model))


class Batcher:
    """Owns the rows of one model. Every call belongs on the device thread.

    Args:
        model: an mlx-lm model.
        width: rows decoded together at most; 1 where :func:`can_batch` says no.
        eos_ids: a row that draws one of them has finished.
        admission: which rows the KV grant allows.
        pacer: whose turn it is, and the size of a chunk.
        defer_ceiling_s: how long a row may be deferred before what rows hold decides, and not what they may grow to.
        pass_bytes: what a decode step reads however few rows it has; None: not known, and only memory makes cohorts.
        measures_cost: what KV is measured to take replaces what ``admission`` was told.
        runs_ahead: dispatch the next token before the last is reported; False where the model computes in the call.
        device_headroom: bytes that the device has left; None where it does not say.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        width: int,
        eos_ids: frozenset[int],
        admission: KvAdmission,
        pacer: Pacer,
        defer_ceiling_s: float = 30.0,
        pass_bytes: int | None = None,
        measures_cost: bool = False,
        runs_ahead: bool = True,
        device_headroom: Callable[[], int | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pacer = pacer
        self.times = RowTimes()
        self.reception = Reception(admission, width, defer_ceiling_s, pass_bytes, clock)
        self.running = RunningRows(
            Cohorts(model, eos_ids, runs_ahead=runs_ahead, told=self.times.told, clock=clock),
        )
        self.watch = MemoryWatch(
            self.running,
            self.reception,
            estimate=admission.cost if measures_cost else None,
            device_headroom=device_headroom,
            clock=clock,
        )
        self._model = model
        self._pass_bytes = pass_bytes
        self._merges = can_batch(model)
        self._clock = clock
        self._suspects: dict[int, int] = {}  # rows over which memory may run out just now, and their lengths
        self._late: list[RowEvent] = []  # for the next tick to answer
        self._settled_s = 0.0  # of decode steps, that was waited for outside of them
        self._decode_ticks = 0

    @property
    def admission(self) -> KvAdmission:
        """Which rows the KV grant allows; may be replaced between ticks."""
        return self.reception.admission

    @admission.setter
    def admission(self, admission: KvAdmission) -> None:
        self.reception.admission = admission

    @property
    def busy(self) -> bool:
        """True while a step would do something."""
        return self.running.some or bool(self._late) or self.reception.actionable

    @property
    def kv_bytes(self) -> int:
        """Bytes the rows' caches hold now."""
        return self.running.kv_bytes

    def submit(self, row: Row) -> None:
        """Queues a row. Its id must be new."""
        self.reception.submit(replace(row, arrived_at=self._clock()))

    def cancel(self, row_id: int) -> bool:
        """Lets a row go, wherever it is; no event of it follows. False where there is none of this id."""
        self.watch.governor.forget(row_id)
        self.pacer.forget(row_id)
        found = self._guarded(lambda: self.running.take(row_id) is not None, self._late)
        found = self.reception.remove(row_id) is not None or bool(found)
        self._late = [event for event in self._late if event.id != row_id]
        self._tidy()
        return found

    def clear(self) -> None:
        """Lets every row go."""
        self.reception.clear()
        self.running.take_all()

    def step(self) -> list[RowEvent]:
        """One tick. At most one chunk of prefill or one token a row; a row that is started is answered at once."""
        events, self._late = self._late, []
        self._guarded(lambda: self._tick(events), events)
        return events

    def _guarded(self, work: Callable[[], bool | None], events: list[RowEvent]) -> bool | None:
        """What it answers; where memory runs out in it, None, and the rows start again from what they have said."""
        self._suspects = {}
        try:
            return work()
        except Exception as error:
            if not is_memory_error(error):
                raise
            log.warning("memory ran out: %s", error)
        # Only here the error is gone, and with it the frames that hold arrays.
        self.watch.recover(self._suspects, events)
        self._settled_s = 0.0
        return None

    def _tick(self, events: list[RowEvent]) -> None:
        self.watch.relieve(events)
        self.watch.make_room(events)
        self._start_next(events)
        prefilling, decoding = self.running.prefill is not None, bool(self.running.cohorts.rows)
        if not events and (prefilling or decoding):
            if self.pacer.turn(prefilling=prefilling, decoding=decoding) == "prefill":
                self._prefill_chunk(events)
            else:
                self._decode(events)
        self._tidy()

    def _tidy(self) -> None:
        shelf = self.running.shelf
        if shelf.prompt is not None:
            decoding = (live.row for live in self.running.cohorts.rows.values())
            shelf.tidy(self.reception.waiting, decoding, self._clock())

    # --- starting ---

    def _company(self, joining: Sequence[Row] = (), beside: int = 0) -> Company:
        """The rows that hold memory, and those that are about to; with so many bytes beside them."""
        lengths = self.running.lengths(self.reception.projected, joining)
        reserve = self.watch.reserve_bytes if lengths.held else 0
        return Company(lengths.projected, lengths.held, beside + reserve)

    def _start_next(self, events: list[RowEvent]) -> None:
        """Starts the rows for which there is a place, until one's prompt has to be read."""
        running, shelf = self.running, self.running.shelf
        while running.prefill is None and self.reception.waiting and self._admits():
            if len(running.cohorts) >= self.reception.width:
                self.reception.full()
                return
            opening = self.reception.next(self._company(), events)
            if opening is None:
                return
            row = opening.row
            running.join_at(opening.batch)
            beside = shelf.projected_bytes(self.admission.cost)
            kept = self.admission.fits_cohorts(self._company([row]).projected, beside)
            row = replace(row, waits_until=None)
            if shelf.serves(row):
                self.reception.remove(row.id)
                running.joining = [row]
                self._join_siblings(self._siblings(events, beside if kept else 0, [row]), events, keep=kept)
                continue
            if not kept:
                shelf.clear()
            running.prefill = Prefill(self._model, row, merges=self._merges)
            self.reception.remove(row.id)
            self._started(row, events)

    def _admits(self, joining: int = 0) -> bool:
        return self.watch.governor.admits(len(self.running.cohorts) + joining)

    def _started(self, row: Row, events: list[RowEvent], cached_tokens: int = 0) -> None:
        if not row.resumed:
            self.times.queue_wait.add(self._clock() - row.arrived_at)
        events.append(RowStarted(row.id, cached_tokens))

    def _siblings(self, events: list[RowEvent], beside: int, joining: Sequence[Row]) -> list[Row]:
        """Takes the rows that may start next with the prompt on the shelf; after ``joining``, which start with it in any case."""
        taken = [*joining]
        while self._admits(len(taken)):
            opening = self.reception.next(self._company(taken, beside), events, asks_only=True)
            if opening is None or not self.running.shelf.serves(opening.row):
                break
            self.reception.remove(opening.row.id)
            taken.append(replace(opening.row, waits_until=None))
            self.running.joining = taken
        return taken

    # --- reading ---

    def _prefill_chunk(self, events: list[RowEvent]) -> None:
        """Reads the next chunk of the prompt; with the last one the row joins, and siblings with it."""
        running = self.running
        prefill = running.prefill
        assert prefill is not None
        row = prefill.row
        self._suspects = {row.id: len(row.tokens)}
        if not prefill.finished:
            self._read(prefill, events)
        elif row.scores_prompt:
            events.append(prompt_scores(row.id, 0, None))
        if not prefill.finished:
            return
        running.joining, running.prefill = [row], None
        if row.siblings is None or not self._merges:
            self._join([row], prefill.cache, events)
            return
        prompt = running.shelf.prompt = SharedPrompt(prefill, self._clock())
        rows = self._siblings(events, 0, [row])
        kept = self.admission.cost.row_bytes(len(prompt.tokens))
        keep = self.admission.fits_cohorts(self._company(rows).projected, kept)
        self._join_siblings(rows, events, keep=keep, reader=row)

    def _read(self, prefill: Prefill, events: list[RowEvent]) -> None:
        """One chunk. It is timed alone: what decoding has dispatched ahead is waited for before, and counts as decoding."""
        began = self._clock()
        self.running.cohorts.settle()
        settled = self._clock()
        self._settled_s += settled - began
        tokens = prefill.read(self.watch.governor.chunk(self.pacer.chunk_tokens))
        self.pacer.observe(tokens, self._clock() - settled)
        if prefill.row.scores_prompt:
            events.append(prompt_scores(prefill.row.id, prefill.done - tokens, prefill.scores[-1]))

    def _join_siblings(
        self, rows: Sequence[Row], events: list[RowEvent], *, keep: bool, reader: Row | None = None
    ) -> None:
        """These rows start with the prompt on the shelf; ``reader`` is the one that has read it."""
        shelf = self.running.shelf
        prompt = shelf.prompt
        assert prompt is not None
        for row in rows:
            if row is reader:
                continue
            self._started(row, events, prompt.cached_tokens)
            if row.scores_prompt:
                events += prompt.scores_for(row)
        decoding = sum(row.max_tokens > 0 for row in rows)
        cache = prompt.copies(decoding) if keep else prompt.given_up(decoding)
        if not keep:
            shelf.clear()
        self._join(rows, cache, events)

    def _join(self, rows: Sequence[Row], cache: list[Any], events: list[RowEvent]) -> None:
        """Rows of one prompt, whose tokens but for the last are in the cache, begin to decode."""
        running = self.running
        events += [RowRead(row.id) for row in rows if row.max_tokens == 0]
        rows = running.joining = [row for row in rows if row.max_tokens > 0]
        self._suspects = {row.id: len(row.tokens) for row in rows}
        if rows:
            running.cohorts.join(
                rows, cache, running.joins if running.joins in running.cohorts.batches else None, events
            )
        running.joining, running.joins = (), None

    # --- decoding ---

    def _decode(self, events: list[RowEvent]) -> None:
        cohorts, prefill = self.running.cohorts, self.running.prefill
        rows = [*cohorts.rows]
        self._suspects = {}  # the deepest of all
        tokens = sum(map(self.admission.cost.attended, cohorts.held))
        began = self._clock()
        cohorts.step(events)
        seconds = self._clock() - began + self._settled_s
        self._settled_s = 0.0
        deferred = self.reception.deferred.ids
        places = self.reception.width - len(rows) - 1  # who waits for one is not held back by pacing
        reading = [] if prefill is None else [prefill.row.id, *self.reception.waiting.ids()[: max(0, places)]]
        held_back = [row_id for row_id in reading if row_id not in deferred]
        self.pacer.decoded(rows, seconds, held_back, deferred, tokens=tokens)
        self._decode_ticks += 1
        if len(cohorts.batches) > 1 and self._decode_ticks % _MERGE_EVERY == 0:
            self._merge_cohorts()
        if self._decode_ticks % _CLEAR_CACHE_EVERY == 0:
            mx.clear_cache()

    def _merge_cohorts(self) -> None:
        """Two batches whose lengths have come near each other become one."""
        running = self.running
        beside = running.shelf.projected_bytes(self.admission.cost)
        pair = mergeable(self.admission, self._company().projected, beside, pass_bytes=self._pass_bytes)
        if pair is None or max(pair) >= len(running.cohorts.batches):  # that of the row being read is none yet
            return
        first, second = (running.cohorts.batches[index] for index in pair)
        running.cohorts.merge(first, second)
        if running.joins is second:
            running.joins = first

    # --- a larger grant ---

    def growth(self) -> tuple[int, int] | None:
        """The row that lacks memory, or soon will, and the bytes beyond the grant that are asked for it."""
        live = [*self.running.cohorts.rows.values()] if len(self.running.cohorts) == 1 else []
        return self.reception.growth(live[0] if live and self.running.prefill is None else None)

    def deny_growth(self, row_id: int, most_bytes: int) -> list[RowEvent]:
        """No grant will ever be larger than this. What a row then ends with, if it cannot do with so much."""
        live = self.running.cohorts.rows.get(row_id)
        most = self.admission.cost.longest_row(most_bytes)
        if live is not None and most is not None:
            live.row = replace(live.row, most_tokens=most)
        events = self.reception.deny_growth(row_id, most_bytes)
        self._tidy()
        return events
