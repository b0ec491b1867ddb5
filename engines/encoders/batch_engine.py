"""The engine of models that read texts whole: one queue, batches across requests, answers when a request's last text is done.

A subclass says how a request becomes rows (``prepare``), what the model makes of a batch (``finish_batch``) and how an answer is
told (``answer``). The rest of :class:`engines.interface.Engine` is here.

A step is one batch, of a quarter of a second or so. A batch that would last longer, because one text alone is that long, goes
layer by layer over several steps, and other batches take turns with it. A cancelled request's rows leave the queue at once; those
in a batch under way are computed for nobody.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np

from engines.encoders.batch_shapes import BatchShapes, ExactShapes, FewShapes
from engines.encoders.batches import BatchLimits, Pace, leader
from engines.encoders.encoder import Encoded, Encoder, Pass
from engines.errors import ContextLengthExceeded, EngineFailed
from engines.gguf import kernels
from engines.interface import EngineInfo, ReportProgress
from engines.wire import Admitted, Event, Failed, Finished, FinishReason, GrowRequest, MemoryReport, Usage, to_wire

__all__ = ["STEP_S", "BatchEngine", "Job", "Row"]

STEP_S = 0.25
_CPU_FLOPS, _GPU_FLOPS = 50e9, 20e12  # what is assumed until batches have been measured

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """One text as the model reads it; ``types`` are token types, None where all are 0."""

    ids: Sequence[int]
    types: Sequence[int] | None = None


@dataclass(eq=False)
class Job:
    """One request. ``prepare`` makes it; the device thread owns it from ``submit`` on.

    Attributes:
        rows: what the model reads, in the request's order.
        results: float32 [rows, …], filled in as batches end.
        options: the subclass's own.
    """

    rows: Sequence[Row]
    options: Any = None
    request_id: int = 0
    results: np.ndarray | None = None
    left: int = field(init=False)  # rows without a result
    tokens_left: int = field(init=False)  # of the rows that wait
    admitted: bool = False
    over: bool = False  # answered, or cancelled

    def __post_init__(self) -> None:
        self.left = len(self.rows)
        self.tokens_left = self.tokens = sum(len(row.ids) for row in self.rows)
        self.longest = max((len(row.ids) for row in self.rows), default=0)


@dataclass(frozen=True, eq=False)
class _Waiting:
    """A row in the queue, which is in order of length."""

    length: int
    arrival: int
    job: Job
    index: int

    @property
    def row(self) -> Row:
        return self.job.rows[self.index]


def _in_order(row: _Waiting) -> tuple[int, int]:
    return row.length, row.arrival


@dataclass
class _Batch:
    """``members`` are the first rows of ``run``; dummies may follow. ``places`` counts them and all other padding."""

    members: list[_Waiting]
    run: Pass
    places: int
    seconds: float = 0.0


class BatchEngine(ABC):
    """See the module. ``prepares_at_once`` is False: a request may hold two thousand texts."""

    def __init__(self, encoder: Encoder, info: EngineInfo, grant_bytes: int | None, *, float_bytes: int) -> None:
        self._encoder = encoder
        self._info = info
        self._grant = grant_bytes
        self._float_bytes = float_bytes
        self._shapes: BatchShapes = ExactShapes()
        self._cuda = info.device == "gpu" and mx.cuda.is_available()
        if self._cuda:
            self._shapes = FewShapes(info.context, info.width, encoder.shape.free_places)
        speed = _CPU_FLOPS if info.device == "cpu" else _GPU_FLOPS
        self._pace = Pace(STEP_S, rate=speed / encoder.shape.flops_per_token)
        self._jobs: dict[int, Job] = {}  # in order of arrival
        self._waiting: list[_Waiting] = []  # by length
        self._long: _Batch | None = None  # under way over several steps
        self._ended: list[Event] = []
        self._arrivals = 0
        self._turn = 0
        self._denied: int | None = None  # bytes that the grant can never exceed
        self._failure: EngineFailed | None = None

    # --- the subclass ---

    @abstractmethod
    def prepare(self, request: Any) -> Job:
        """Any thread. RequestError when it cannot be served."""

    @abstractmethod
    def finish_batch(self, encoded: Encoded) -> mx.array:
        """What the head makes of a batch: float32 [rows, …]."""

    @abstractmethod
    def answer(self, job: Job) -> Sequence[Event]:
        """The events of a job that is done, but for its terminal one."""

    # --- Engine ---

    def warm_up(self, report: ReportProgress) -> None:
        """Computes a batch of each usual shape that the grant has room for, while the model loads: on CUDA the first of a shape
        waits for its graph, and the first of all for MLX's own kernels. ``report`` is told the fraction that is done."""
        usual = [
            (rows, length) for rows, length in self._shapes.usual() if rows * length <= self._limits(length).places
        ]
        for done, (rows, length) in enumerate(usual):
            ids = [[0] * max(1, length - 1)] * rows
            # Token types are looked up by kernels of their own, which need no more than one shape.
            for types in (None, [[1] * len(ids[0])] * rows) if done == 0 and self._encoder.type_count > 1 else (None,):
                run = Pass(self._encoder, ids, types, length, self._layers_at_once(rows, length))
                run.advance(None)
                mx.eval(self.finish_batch(run.encoded()))
            report((done + 1) / len(usual))
        if usual:
            mx.clear_cache()

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def busy(self) -> bool:
        return bool(self._ended or self._failure or self._long or self._next_lead() is not None)

    def submit(self, request_id: int, prepared: Job) -> None:
        prepared.request_id = request_id
        self._jobs[request_id] = prepared
        for index, row in enumerate(prepared.rows):
            self._arrivals += 1
            self._waiting.append(_Waiting(len(row.ids), self._arrivals, prepared, index))
        self._waiting.sort(key=_in_order)
        if not prepared.rows:
            self._ended += self._end(prepared)

    def cancel(self, request_id: int) -> None:
        job = self._jobs.get(request_id)
        if job is not None:
            self._ended += self._end(job, "cancelled")

    def step(self) -> Sequence[Event]:
        """Events that wait; or one batch, or a part of one. Raises EngineFailed in the step after the one that answered
        ``Failed`` to every request."""
        if self._ended:
            events, self._ended = self._ended, []
            return events
        if self._failure is not None:
            raise self._failure
        events = []
        try:
            batch = self._choose(events)
            if batch is not None:
                self._advance(batch, events)
        except Exception as error:  # whatever the forward pass raises, every request depends on it
            log.exception("the forward pass failed")
            return events + self._fail_all(error)
        return events

    def set_cores(self, cores: int) -> None:
        kernels.set_cores(cores)

    def set_grant(self, grant_bytes: int) -> None:
        self._grant = grant_bytes

    def growth(self) -> GrowRequest | None:
        """Of the first request whose longest text is too long for the grant."""
        for job in self._jobs.values():
            needed = self._largest(job)
            if needed and not self._fits(needed):
                return GrowRequest(request_id=job.request_id, bytes=needed - (self._grant or 0))
        return None

    def deny_growth(self, request_id: int, most_bytes: int) -> None:
        job = self._jobs.get(request_id)
        if job is None:
            return
        if self._largest(job) > most_bytes:
            most = self._tokens_in(most_bytes)
            error = ContextLengthExceeded(
                f"The longest input has {job.longest} tokens; the memory that this model can be granted is enough for {most}.",
                tokens=job.longest,
                most_tokens=most,
            )
            self._drop(job)
            usage = Usage(prompt_tokens=job.tokens)
            self._ended.append(Failed(request_id=request_id, error=to_wire(error), usage=usage))

    def shed(self, byte_count: int) -> None:
        """Nothing but MLX's unused buffers is kept."""
        mx.clear_cache()

    def memory(self) -> MemoryReport:
        return MemoryReport(static=0, kv=0, prompt_cache=0, mlx_cache=mx.get_cache_memory(), peak=mx.get_peak_memory())

    def close(self) -> None:
        for job in list(self._jobs.values()):
            self._ended += self._end(job, "cancelled")
        self._long = None
        mx.clear_cache()

    # --- batches ---

    def _choose(self, events: list[Event]) -> _Batch | None:
        self._turn += 1
        if self._long is not None and (self._turn % 2 == 0 or self._next_lead() is None):
            return self._long
        lead = self._next_lead()
        if lead is None:
            return None
        return self._cut(lead, events)

    def _next_lead(self) -> _Waiting | None:
        """The longest row of the request whose turn it is; of those whose rows fit the grant."""
        ready = [job for job in self._jobs.values() if job.tokens_left and self._fits(self._largest(job))]
        if self._long is not None:  # a second long one waits for the first
            ready = [job for job in ready if self._is_short(job)]
        if not ready:
            return None
        job = ready[leader([job.tokens_left for job in ready], self._turn // 2 if self._long else self._turn)]
        return next(row for row in reversed(self._waiting) if row.job is job)

    def _cut(self, lead: _Waiting, events: list[Event]) -> _Batch:
        at = bisect_left(self._waiting, _in_order(lead), key=_in_order)
        lengths = [row.length for row in self._waiting]
        begin, end = self._shapes.cut(lengths, at, self._limits)
        members = [row for row in self._waiting[begin:end] if row is lead or self._fits(self._largest(row.job))]
        taken = set(members)
        self._waiting = [row for row in self._waiting if row not in taken]
        for row in members:
            row.job.tokens_left -= row.length
            if not row.job.admitted:
                row.job.admitted = True
                events.append(Admitted(request_id=row.job.request_id, prompt_tokens=row.job.tokens))
        return self._batch(members)

    def _batch(self, members: list[_Waiting]) -> _Batch:
        length = self._shapes.length(max(row.length for row in members))
        rows = self._shapes.rows(len(members), length)
        dummies = [[0]] * (rows - len(members))
        types = None
        if any(row.row.types for row in members):
            types = [*(row.row.types or [0] * row.length for row in members), *dummies]
        ids = [*(row.row.ids for row in members), *dummies]
        run = Pass(self._encoder, ids, types, length, self._layers_at_once(rows, length))
        return _Batch(members, run, rows * length)

    def _layers_at_once(self, rows: int, length: int) -> int | None:
        """So many that what they compute is within the grant: on CUDA the host runs ahead, and buffers are freed behind the device.
        6 layers of 16,384 places took 1.1 GB on an H200, five times what one layer does."""
        if not self._cuda or self._grant is None:
            return None
        return max(1, self._grant // (rows * self._row_bytes(length)))

    def _limits(self, length: int) -> BatchLimits:
        """Of a batch whose rows are of so many tokens, padding included."""
        tokens = self._pace.tokens
        if self._grant:
            rows = self._grant // 2 // self._row_bytes(length)
            tokens = min(tokens, rows * length)
        return BatchLimits(rows=self._info.width, places=tokens)

    def _advance(self, batch: _Batch, events: list[Event]) -> None:
        started = time.monotonic()
        # Beside one that goes by layers the others are of short texts, and go whole: there is one place for a batch in between.
        whole = batch is not self._long and (
            self._long is not None or self._pace.expected_s(batch.places) <= 2 * STEP_S
        )
        done = batch.run.advance(None if whole else STEP_S)
        if done:
            results = self.finish_batch(batch.run.encoded())
            mx.eval(results)
        batch.seconds += time.monotonic() - started
        if not done:
            self._long = batch
            return
        if batch is self._long:
            self._long = None
        self._pace.took(batch.places, batch.seconds)
        self._deliver(batch.members, np.array(results)[: len(batch.members)], events)
        self._bound_cache()

    def _deliver(self, members: Sequence[_Waiting], results: np.ndarray, events: list[Event]) -> None:
        for row, result in zip(members, results, strict=True):
            job = row.job
            if job.over:
                continue
            if job.results is None:
                job.results = np.empty((len(job.rows), *result.shape), np.float32)
            job.results[row.index] = result
            job.left -= 1
            if job.left == 0:
                events += self._end(job)

    def _end(self, job: Job, reason: FinishReason = "stop") -> list[Event]:
        events = list(self.answer(job)) if reason == "stop" and job.rows else []
        self._drop(job)
        tokens = job.tokens if reason == "stop" or job.admitted else 0
        events.append(Finished(request_id=job.request_id, reason=reason, usage=Usage(prompt_tokens=tokens)))
        return events

    def _drop(self, job: Job) -> None:
        job.over = True
        del self._jobs[job.request_id]
        self._waiting = [row for row in self._waiting if row.job is not job]
        if self._long is not None and all(row.job.over for row in self._long.members):
            self._long = None

    def _fail_all(self, error: Exception) -> list[Event]:
        self._failure = EngineFailed(f"The model's forward pass failed: {type(error).__name__}: {error}")
        failed: list[Event] = [
            Failed(request_id=id, error=to_wire(self._failure), usage=Usage(prompt_tokens=job.tokens))
            for id, job in self._jobs.items()
        ]
        self._jobs.clear()
        self._waiting.clear()
        self._long = None
        return failed

    # --- memory ---

    def _largest(self, job: Job) -> int:
        """Bytes that the longest of its rows takes while it is computed."""
        return self._row_bytes(self._shapes.length(job.longest))

    def _row_bytes(self, length: int) -> int:
        return self._encoder.shape.row_bytes(length, self._float_bytes, cuda=self._cuda)

    def _fits(self, needed: int) -> bool:
        return self._grant is None or needed <= self._grant

    def _is_short(self, job: Job) -> bool:
        return self._pace.expected_s(self._shapes.length(job.longest)) <= 2 * STEP_S

    def _tokens_in(self, byte_count: int) -> int:
        """The longest row that so many bytes are enough for."""
        low, high = 0, self._info.context
        while low < high:
            middle = (low + high + 1) // 2
            if self._row_bytes(self._shapes.length(middle)) <= byte_count:
                low = middle
            else:
                high = middle - 1
        return low

    def _bound_cache(self) -> None:
        """MLX's unused buffers count in the grant: half of it is theirs, half that of batches of several rows."""
        if self._grant is not None and mx.get_cache_memory() > self._grant // 2:
            mx.clear_cache()
