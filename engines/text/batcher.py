"""Rows that join, decode together and leave: mlx-lm's own batches, driven directly.

A row waits in a queue (first come, first served), is prefilled in a one-row batch of its own, chunk by chunk, and then joins
the rows that decode. One call of ``step`` is one tick: a row is started, or a chunk prefilled, or a token decoded for each
row. Rows may be submitted and cancelled between any two ticks.

Where kernels are lazy the batch runs one token ahead: when a token is reported, the next is already drawn. A row that leaves
early loses that token; one that is preempted draws the same one again when it resumes, since a draw depends only on the
row's seed and the token's position.

Siblings, rows of one prompt, read it once: those that can start when it has been read join together with copies of its cache,
and it is kept for the others while the grant has room.

A row that the KV grant could not hold even alone is passed over: ``growth`` says what it lacks, and a larger grant or a denial
ends its wait.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, cast

import mlx.core as mx
from mlx_lm.generate import StopSequences
from mlx_lm.models.cache import make_prompt_cache

from engines.scheduling.admission import Decision, KvAdmission
from engines.scheduling.growth import GROWTH_WAIT_S, asked, asked_ahead
from engines.scheduling.pacing import Pacer
from engines.text.decoding_batch import DecodingBatch
from engines.text.draws import RowDraw
from engines.text.logprobs import PendingScore
from engines.text.prefill import Prefill, prompt_scores
from engines.text.row import Row, RowEvent, RowFailed, RowRead, RowRefused, RowStarted, RowStopped, RowToken
from engines.text.shared_prompt import PromptShelf, SharedPrompt

__all__ = ["Batcher", "LanguageModel", "can_batch"]

_CLEAR_CACHE_EVERY = 512  # decode ticks; MLX keeps the buffers of every shape the growing caches had


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
        admission: which rows the KV grant allows; may be replaced between ticks.
        pacer: whose turn it is, and the size of a chunk.
        runs_ahead: dispatch the next token before the last is reported; False where the model computes in the call.
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
        runs_ahead: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.admission = admission
        self._model = model
        self._width = width
        self._merge = can_batch(model)
        self._stop_sequences = StopSequences([[token] for token in sorted(eos_ids)])
        self._pacer = pacer
        self._runs_ahead = runs_ahead
        self._clock = clock
        self._queue: deque[Row] = deque()
        self._prefill: Prefill | None = None
        self._shelf = PromptShelf()
        self._decoding: DecodingBatch | None = None  # None where no row decodes, never empty
        self._rows: dict[int, Row] = {}  # of the rows that decode
        self._decode_ticks = 0

    @property
    def busy(self) -> bool:
        """True while a step would do something."""
        return self._prefill is not None or self._decoding is not None or any(map(self._actionable, self._queue))

    @property
    def kv_bytes(self) -> int:
        """Bytes the rows' caches hold now."""
        caches = [*(self._prefill.cache if self._prefill else ())]
        caches += self._decoding.prompt_cache if self._decoding else ()
        return cast(int, sum(cache.nbytes for cache in caches)) + self._shelf.held_bytes

    def submit(self, row: Row) -> None:
        """Queues a row. Its id must be new."""
        self._queue.append(row)

    def cancel(self, row_id: int) -> bool:
        """Lets a row go, wherever it is; no event of it follows. False where there is none of this id."""
        found = self._let_go(row_id)
        self._tidy()
        return found

    def _let_go(self, row_id: int) -> bool:
        if self._prefill is not None and self._prefill.row.id == row_id:
            self._prefill = None
            return True
        if row_id in self._rows:
            self._leave(row_id)
            return True
        for row in self._queue:
            if row.id == row_id:
                self._queue.remove(row)
                return True
        return False

    def clear(self) -> None:
        """Lets every row go."""
        self._queue.clear()
        self._prefill = None
        self._decoding = None
        self._rows.clear()
        self._shelf.clear()

    def step(self) -> list[RowEvent]:
        """One tick. At most one chunk of prefill or one token a row; a row that is started is answered at once."""
        events: list[RowEvent] = []
        self._make_room(events)
        self._start_next(events)
        if not events and (self._prefill is not None or self._decoding is not None):
            turn = self._pacer.turn(prefilling=self._prefill is not None, decoding=self._decoding is not None)
            if turn == "prefill":
                self._prefill_chunk(events)
            else:
                self._decode(events)
        self._tidy()
        return events

    def _tidy(self) -> None:
        if self._shelf.prompt is not None:
            self._shelf.tidy(self._queue, self._rows.values(), self._clock())

    # --- joining ---

    def _actionable(self, row: Row) -> bool:
        """A waiting row whose wait may end without anybody's help: it can start, or give up."""
        return self.admission.missing(row.least_tokens) == 0 or self._gives_up(row)

    def _gives_up(self, row: Row) -> bool:
        return row.waits_until is not None and self._clock() >= row.waits_until

    def _start_next(self, events: list[RowEvent]) -> None:
        """Starts the rows at the head of the queue for which there is a place, until one's prompt has to be read."""
        while self._prefill is None and (row := self._next(events)) is not None:
            beside = self._shelf.projected_bytes(self.admission.cost)
            kept = self.admission.fits([*self._lengths(), self._projected(row)], beside)
            if self._shelf.serves(row):
                self._join_siblings(self._siblings(events, beside if kept else 0), events, keep=kept)
                continue
            if not kept:
                self._shelf.clear()
            self._queue.remove(row)
            self._prefill = Prefill(self._model, replace(row, waits_until=None), merges=self._merge)
            events.append(RowStarted(row.id))

    def _next(self, events: list[RowEvent], joining: Sequence[Row] = (), beside: int = 0) -> Row | None:
        """The first row that may start beside these, which stays in the queue. None overtakes another, but one that only a
        larger grant could help."""
        if len(self._rows) + len(joining) >= self._width:
            return None
        running = [*self._lengths(), *map(self._projected, joining)]
        for row in tuple(self._queue):
            decision = self.admission.decide(self._projected(row), running, beside)
            if decision is Decision.WAIT:
                return None
            if decision is Decision.ADMIT:
                return row
            if self._gives_up(row):
                self._queue.remove(row)
                events.append(RowStopped(row.id))
        return None

    def _siblings(self, events: list[RowEvent], beside: int, joining: Sequence[Row] = ()) -> list[Row]:
        """Takes the rows that may start next with the prompt on the shelf; after ``joining``, which start with it too."""
        taken = [*joining]
        while (row := self._next(events, taken, beside)) is not None and self._shelf.serves(row):
            self._queue.remove(row)
            taken.append(replace(row, waits_until=None))
        return taken

    def _prefill_chunk(self, events: list[RowEvent]) -> None:
        """Reads the next chunk of the prompt; with the last one the row joins, and siblings with it."""
        prefill = self._prefill
        assert prefill is not None
        row = prefill.row
        if not prefill.finished:
            started = self._clock()
            tokens = prefill.read(self._pacer.chunk_tokens)
            self._pacer.observe(tokens, self._clock() - started)
            if row.scores_prompt:
                events.append(prompt_scores(row.id, prefill.done - tokens, prefill.scores[-1]))
        elif row.scores_prompt:
            events.append(prompt_scores(row.id, 0, None))
        if not prefill.finished:
            return
        self._prefill = None
        if row.siblings is None or not self._merge:
            self._join([row], prefill.cache, events)
            return
        prompt = self._shelf.prompt = SharedPrompt(prefill, self._clock())
        rows = self._siblings(events, 0, [row])
        lengths = [*self._lengths(), *map(self._projected, rows)]
        keep = self.admission.fits(lengths, self.admission.cost.row_bytes(len(prompt.tokens)))
        self._join_siblings(rows, events, keep=keep, reader=row)

    def _join_siblings(
        self, rows: Sequence[Row], events: list[RowEvent], *, keep: bool, reader: Row | None = None
    ) -> None:
        """These rows start with the prompt on the shelf; ``reader`` is the one that has read it."""
        prompt = self._shelf.prompt
        assert prompt is not None
        for row in rows:
            if row is reader:
                continue
            events.append(RowStarted(row.id, prompt.cached_tokens))
            if row.scores_prompt:
                events += prompt.scores_for(row)
        decoding = sum(row.max_tokens > 0 for row in rows)
        cache = prompt.copies(decoding) if keep else prompt.given_up(decoding)
        if not keep:
            self._shelf.clear()
        self._join(rows, cache, events)

    def _join(self, rows: Sequence[Row], cache: list[Any], events: list[RowEvent]) -> None:
        """Rows of one prompt, whose tokens but for the last are in the cache, begin to decode."""
        events += [RowRead(row.id) for row in rows if row.max_tokens == 0]
        rows = [row for row in rows if row.max_tokens > 0]
        if not rows:
            return
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
        self._rows |= {row.id: row for row in rows}
        if not self._runs_ahead:
            self._report(joining, events)
        if not joining.uids:
            return
        if self._decoding is None:
            self._decoding = joining
        else:
            self._decoding.extend(joining)

    # --- decoding and leaving ---

    def _decode(self, events: list[RowEvent]) -> None:
        batch = self._decoding
        assert batch is not None
        self._report(batch, events)
        if not batch.uids:
            self._decoding = None
        self._decode_ticks += 1
        if self._decode_ticks % _CLEAR_CACHE_EVERY == 0:
            mx.clear_cache()

    def _report(self, batch: DecodingBatch, events: list[RowEvent]) -> None:
        """The next token of each row of a batch; rows that end with it, or cannot go on, have left the batch."""
        constraints = batch.constraints()
        failed = set[int]()
        for response in batch.next():
            finish = cast(Literal["stop", "length"] | None, response.finish_reason)
            failure = constraints[response.uid].failure if response.uid in constraints else None
            if finish is not None or failure is not None:
                del self._rows[response.uid]
            # A token that was drawn before the failure is good, but only the last one is worth telling.
            if failure is not None and (finish is None or not self._runs_ahead):
                failed.add(response.uid)
                events.append(RowFailed(response.uid, failure))
                continue
            pending = cast(PendingScore | None, response.logprobs)
            events.append(RowToken(response.uid, response.token, finish, pending.read() if pending else None))
        if failed:
            batch.filter([i for i, uid in enumerate(batch.uids) if uid not in failed])

    def _leave(self, row_id: int) -> None:
        batch = self._decoding
        assert batch is not None
        del self._rows[row_id]
        if self._rows:
            batch.filter([i for i, uid in enumerate(batch.uids) if uid != row_id])
        else:
            self._decoding = None

    # --- the KV grant ---

    def _projected(self, row: Row) -> int:
        """The length to which a row is projected to grow, in tokens."""
        longest = self.admission.longest_row
        return row.expected_tokens if longest is None else max(row.least_tokens, min(row.expected_tokens, longest))

    def _lengths(self) -> list[int]:
        """The projected lengths of the rows that hold KV cache; the youngest last."""
        lengths = []
        if self._decoding is not None:
            for row_id, tokens in zip(self._decoding.uids, self._decoding.tokens, strict=True):
                # The step to come adds the token that is drawn already.
                lengths.append(max(self._projected(self._rows[row_id]), len(tokens) + 1))
        if self._prefill is not None:
            lengths.append(self._projected(self._prefill.row))
        return lengths

    def _make_room(self, events: list[RowEvent]) -> None:
        """Preempts the youngest rows while all together have outgrown the grant.

        One that has so alone waits for a larger grant; it ends where it is if there can be none.
        """
        beside = self._shelf.projected_bytes(self.admission.cost)
        if beside and not self.admission.fits(self._lengths(), beside):
            self._shelf.clear()
        while (lengths := self._lengths()) and not self.admission.fits(lengths):
            if len(lengths) == 1 and self._decoding is not None:
                (row,) = self._rows.values()
                if row.most_tokens is not None and row.most_tokens < lengths[0]:
                    self._leave(row.id)
                    events.append(RowStopped(row.id))
                    continue
            self._preempt_youngest(alone=len(lengths) == 1)

    def _preempt_youngest(self, *, alone: bool) -> None:
        """Puts the row that joined last back to the head of the queue, with what it has drawn so far as its prompt."""
        if self._prefill is not None:
            self._queue.appendleft(self._prefill.row)
            self._prefill = None
            return
        batch = self._decoding
        assert batch is not None
        row, tokens = self._rows[batch.uids[-1]], batch.history(-1)
        self._leave(row.id)
        self._queue.appendleft(row.resuming(tokens, self._clock() + GROWTH_WAIT_S if alone else None))

    # --- a larger grant ---

    def growth(self) -> tuple[int, int] | None:
        """The row that the grant cannot hold alone, or soon not any more, and the bytes beyond the grant it asks for."""
        longest = self.admission.longest_row
        if longest is None:
            return None
        if self._decoding is not None and self._prefill is None and len(self._rows) == 1:
            (row,) = self._rows.values()
            wanted = asked_ahead(row.lengths, len(self._decoding.tokens[0]), longest)
            if wanted is not None:
                return row.id, self.admission.missing(wanted)
        for row in self._queue:
            wanted = asked(row.lengths, longest)
            if wanted is not None:
                return row.id, self.admission.missing(wanted)
        return None

    def deny_growth(self, row_id: int, most_bytes: int) -> list[RowEvent]:
        """No grant will ever be larger than this. What a row then ends with, if it cannot do with so much."""
        most = self.admission.cost.longest_row(most_bytes)
        if most is None:
            return []
        if row_id in self._rows:
            self._rows[row_id] = replace(self._rows[row_id], most_tokens=most)
        for place, row in enumerate(self._queue):
            if row.id != row_id:
                continue
            if row.least_tokens <= most:
                self._queue[place] = replace(row, most_tokens=most)
                return []
            del self._queue[place]
            self._tidy()
            return [RowStopped(row_id) if row.resumed else RowRefused(row_id, row.least_tokens, most)]
        return []
