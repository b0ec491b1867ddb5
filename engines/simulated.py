"""An engine with a set size, load time and speed, and no model: for rehearsing a registry, and for tests.

It answers every prompt with the words ``w0 w1 w2 …``, one a token, up to ``max_tokens``; thinking, tool calls and JSON, where they
are asked for, are made up (``simulated_script.py``). A prompt has as many tokens as words; later siblings count all but its last
as cached. Log-probabilities are made up.
Where neither ``max_tokens`` nor a context ends an answer, DEFAULT_MAX_TOKENS does. Its memory report is arithmetic: the
weights it was told, and ``kv_bytes_per_token`` for each token of the rows under way.

It obeys its KV grant as a real engine does: a row starts, by priority, where its tokens, prompt and answer, fit beside those of
the rows under way; one that would not fit alone asks for a larger grant and waits; rows that have outgrown it give way, the
youngest first. Unlike in a real engine, rows of unequal length waste nothing, and nothing is paced: a row that has begun and has
not said anything yet counts as prefilling. The grant bounds the rows' tokens and not the width.

Timing: a build lasts ``load_s``; a row's first token comes ``ttft_s`` after its admission, the next ones ``1 / tokens_per_s``
apart (0: one a step, as fast as it goes). All of it is the injected clock's, so a fake clock makes time virtual.

Faults: ``fail_load`` fails the build with its text; ``abort_after_tokens: N`` aborts the process (as Metal does when memory is
out) once the worker has emitted N tokens; ``hang_after_tokens: N`` stops answering then. ``abort_times`` and
``hold_memory_s`` are the gateway's part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engines import simulated_text
from engines.errors import CheckpointError, ContextLengthExceeded, InvalidField
from engines.interface import EngineInfo, ReportProgress
from engines.scheduling.capacity import CAPACITY_ROWS
from engines.scheduling.growth import GROWTH_WAIT_S, OPEN_ANSWER, RowLengths, asked, asked_ahead
from engines.scheduling.waiting import WaitingRows
from engines.simulated_clock import Clock, RealClock
from engines.simulated_faults import abort_process, hang_thread
from engines.simulated_row import SimulatedRow
from engines.simulated_script import script_of
from engines.simulated_times import SimulatedTimes
from engines.text.stops import StopMatcher
from engines.wire import (
    Admitted,
    CapacityRow,
    ChatPrompt,
    Event,
    Failed,
    Finished,
    FinishReason,
    GrowRequest,
    LoadModel,
    MemoryReport,
    PriorityCounts,
    SchedulingReport,
    SimulateSpec,
    TextRequest,
    Usage,
    to_wire,
)

__all__ = ["DEFAULT_MAX_TOKENS", "UNLIMITED_CONTEXT", "Clock", "RealClock", "SimulatedEngine", "build"]

DEFAULT_MAX_TOKENS = 4096
UNLIMITED_CONTEXT = 2**31 - 1  # tokens; what an entry without ``context`` reports
_DEFAULT_WIDTH = 64
_LOAD_STEPS = 20
_LONGEST_SLEEP_S = 0.01  # in a step, so that a cancel or a new request is not kept waiting
_LAST_WORDS_S = 0.05  # before an abort: what was emitted has left the process by then


def build(load: LoadModel, report: ReportProgress, clock: Clock | None = None) -> SimulatedEngine:
    """Lasts ``load_s``, reporting as it goes. CheckpointError when the entry says ``fail_load``."""
    spec = load.spec
    simulate = spec.simulate or SimulateSpec(weights_bytes=0)
    clock = clock or RealClock()
    for done in range(_LOAD_STEPS if simulate.load_s > 0 else 0):
        clock.sleep(simulate.load_s / _LOAD_STEPS)
        report((done + 1) / _LOAD_STEPS)
    if simulate.fail_load is not None:
        raise CheckpointError(f"{spec.id}: {simulate.fail_load}")
    return SimulatedEngine(
        simulate, context=spec.context, width=spec.concurrency, grant_bytes=load.grant_bytes, clock=clock
    )


class SimulatedEngine:
    """A :class:`~engines.interface.TextEngine`, which prepares by counting words."""

    prepares_at_once = True

    def __init__(
        self,
        simulate: SimulateSpec,
        *,
        context: int | None,
        width: int | None,
        clock: Clock,
        grant_bytes: int | None = None,
        abort: Callable[[], None] | None = None,
        hang: Callable[[], None] | None = None,
    ) -> None:
        self._simulate = simulate
        self._context = context
        self._clock = clock
        self._abort = abort or abort_process
        self._hang = hang or hang_thread
        self._width = width or _DEFAULT_WIDTH
        self._grant_bytes = grant_bytes
        self._queued = WaitingRows[SimulatedRow]()
        self._deferred = 0  # of them, that wait for memory
        self._rows: list[SimulatedRow] = []
        self._ended: list[Event] = []  # terminal events that the next step answers
        self._siblings: int | None = None  # of the row admitted last
        self._emitted = 0
        self._peak = 0
        self._times = SimulatedTimes()
        self._preemptions = 0

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            kv_bytes_per_token=self._simulate.kv_bytes_per_token,
            context=self._context or UNLIMITED_CONTEXT,
            width=self._width,
            kernels="simulated",
            device="simulated",
        )

    @property
    def busy(self) -> bool:
        return bool(self._rows or self._ended) or any(map(self._actionable, self._queued))

    def prepare(self, request: TextRequest) -> SimulatedRow:
        """ContextLengthExceeded when the prompt leaves no room for a token, InvalidField when none is asked for,
        UnsupportedParameter for a schema or grammar that it cannot follow.
        """
        if request.max_tokens is not None and request.max_tokens < (0 if request.echo else 1):
            raise InvalidField(
                f"max_tokens is {request.max_tokens}; it must be at least 1, or 0 beside echo", param="max_tokens"
            )
        prompt_tokens = simulated_text.prompt_tokens(request.prompt)
        wanted = DEFAULT_MAX_TOKENS if request.max_tokens is None and self._context is None else request.max_tokens
        rest = (self._context or UNLIMITED_CONTEXT) - prompt_tokens
        if rest < (0 if wanted == 0 else 1):
            raise ContextLengthExceeded(
                f"The prompt has {prompt_tokens} tokens; this model's context holds {self._context}.",
                param="messages" if isinstance(request.prompt, ChatPrompt) else "prompt",
                tokens=prompt_tokens,
                most_tokens=(self._context or UNLIMITED_CONTEXT) - (0 if wanted == 0 else 1),
            )
        allowed = rest if wanted is None else min(wanted, rest)
        open_ended = request.max_tokens is None or request.clamp
        lengths = RowLengths(
            least=prompt_tokens + (1 if open_ended else allowed),
            expected=prompt_tokens + (min(allowed, OPEN_ANSWER) if open_ended else allowed),
            end=prompt_tokens + allowed,
        )
        return SimulatedRow(request, 0, prompt_tokens, allowed, StopMatcher(request.stop), lengths, script_of(request))

    def submit(self, request_id: int, prepared: Any) -> None:
        row: SimulatedRow = prepared
        now = self._clock.now()
        row.request_id, row.submitted_at = request_id, now
        self._queued.add(request_id, row, row.request.priority, now)

    def cancel(self, request_id: int) -> None:
        for row in (*self._queued, *self._rows):
            if row.request_id == request_id:
                row.cancelled = True

    def step(self) -> Sequence[Event]:
        """Admits what fits, then one token of every row that is due; with none due, waits a little."""
        self._break_down()
        now = self._clock.now()
        events, self._ended = self._ended, []
        self._drop_cancelled(events)
        self._make_room(events)
        self._admit(events)
        for row in [row for row in self._rows if row.due <= now]:
            if self._emit(row, events):
                self._rows.remove(row)
        self._peak = max(self._peak, self._total_bytes())
        if not events and self._rows:
            soonest = min(row.due for row in self._rows)
            self._clock.sleep(min(max(soonest - now, 0.0), _LONGEST_SLEEP_S))
        return events

    def set_grant(self, grant_bytes: int) -> None:
        """Holds for rows under way too: the youngest give way."""
        self._grant_bytes = grant_bytes

    def growth(self) -> GrowRequest | None:
        ahead = asked_ahead(self._rows[0].lengths, self._rows[0].held, self._longest) if len(self._rows) == 1 else None
        wants = [(self._rows[0], ahead)] if ahead is not None else []
        wants += [(row, length) for row in self._queued if (length := asked(row.lengths, self._longest)) is not None]
        if not wants:
            return None
        row, length = wants[0]
        missing = length * self._simulate.kv_bytes_per_token - (self._grant_bytes or 0)
        return GrowRequest(request_id=row.request_id, bytes=missing)

    def deny_growth(self, request_id: int, most_bytes: int) -> None:
        most = most_bytes // max(1, self._simulate.kv_bytes_per_token)
        for row in (*self._rows, *self._queued):
            if row.request_id != request_id:
                continue
            row.lengths = replace(row.lengths, most=most)
            if request_id in self._queued and row.lengths.least > most:
                self._queued.remove(request_id)
                if row.admitted:
                    self._finish(row, "length", self._ended)
                else:
                    self._fail(row, most)

    def shed(self, byte_count: int) -> None:
        """Nothing to do: it keeps no caches."""

    def memory(self) -> MemoryReport:
        total = self._total_bytes()
        weights = self._simulate.weights_bytes
        return MemoryReport(
            static=weights, kv=total - weights, prompt_cache=0, mlx_cache=0, peak=max(self._peak, total)
        )

    @property
    def capacity(self) -> tuple[CapacityRow, ...]:
        """What the grant holds, as this engine counts."""
        longest, context = self._longest, self._context or UNLIMITED_CONTEXT
        if longest is None:
            return ()
        return tuple(CapacityRow(rows, min(context, longest // rows)) for rows in CAPACITY_ROWS)

    def scheduling(self) -> SchedulingReport:
        size, grant = self._simulate.kv_bytes_per_token, self._grant_bytes
        decoding = sum(row.said_at is not None for row in self._rows)
        held = sum(row.held for row in self._rows) * size
        return SchedulingReport(
            width=self._width,
            decoding=decoding,
            prefilling=len(self._rows) - decoding,
            waiting=len(self._queued),
            deferred=self._deferred,
            by_priority=PriorityCounts(**self._queued.by_priority()),
            headroom_bytes=None if grant is None else max(0, grant - held),
            decode_tokens_s=self._times.tokens_s(self._clock.now()),
            frontier_tokens=max((row.held for row in self._rows), default=0),
            bytes_per_row_token=float(size),
            preemptions=self._preemptions,
            cohorts=int(bool(self._rows)),
            inter_token=self._times.inter_token.read(),
            queue_wait=self._times.queue_wait.read(),
            ttft=self._times.ttft.read(),
        )

    def close(self) -> None:
        self._queued.clear()
        self._rows.clear()

    # --- the KV grant ---

    @property
    def _longest(self) -> int | None:
        """Tokens that the grant holds; None: no bound."""
        size = self._simulate.kv_bytes_per_token
        return None if self._grant_bytes is None or size == 0 else self._grant_bytes // size

    def _projected(self, row: SimulatedRow) -> int:
        """The length to which a row is projected to grow, in tokens."""
        longest = self._longest
        expected = row.lengths.expected if longest is None else min(row.lengths.expected, longest)
        return max(row.lengths.least, expected, row.held + 1)

    def _actionable(self, row: SimulatedRow) -> bool:
        """A waiting row whose wait may end without anybody's help."""
        return row.cancelled or self._gives_up(row) or asked(row.lengths, self._longest) is None

    def _gives_up(self, row: SimulatedRow) -> bool:
        return row.waits_until is not None and self._clock.now() >= row.waits_until

    def _admit(self, events: list[Event]) -> None:
        """In order; a row that only a larger grant could help is passed over."""
        longest = self._longest
        self._deferred = 0
        for row in self._queued:
            if len(self._rows) >= self._width:
                return
            if asked(row.lengths, longest) is not None:
                if self._gives_up(row):
                    self._queued.remove(row.request_id)
                    self._finish(row, "length", events)
                else:
                    self._deferred += 1
                continue
            if longest is not None and sum(map(self._projected, (*self._rows, row))) > longest:
                self._deferred += 1
                return
            self._queued.remove(row.request_id)
            now = self._clock.now()
            row.due, row.waits_until = now + self._simulate.ttft_s, None
            self._rows.append(row)
            if not row.admitted:
                row.admitted = True
                self._times.queue_wait.add(now - row.submitted_at)
                self._share(row)
                events.append(Admitted(request_id=row.request_id, prompt_tokens=row.prompt_tokens))

    def _share(self, row: SimulatedRow) -> None:
        siblings = row.request.siblings
        if siblings is not None and siblings == self._siblings:
            row.cached_tokens = max(0, row.prompt_tokens - 1)
        self._siblings = siblings

    def _make_room(self, events: list[Event]) -> None:
        """The youngest rows give way while all together have outgrown the grant; one alone, until there is a larger one."""
        longest = self._longest
        while longest is not None and self._rows and sum(map(self._projected, self._rows)) > longest:
            row = self._rows.pop()
            most = row.lengths.most
            if not self._rows and most is not None and most <= row.held:
                self._finish(row, "length", events)
                continue
            least = max(row.lengths.least, row.held + 1)
            row.lengths = replace(row.lengths, least=least, expected=max(least, row.lengths.expected))
            if not self._rows and least > longest:
                row.waits_until = self._clock.now() + GROWTH_WAIT_S
                row.lengths = replace(row.lengths, expected=min(row.lengths.end, row.held + OPEN_ANSWER))
            self._preemptions += 1
            self._queued.put_back(row.request_id, row, row.request.priority, row.submitted_at)

    def _fail(self, row: SimulatedRow, most: int) -> None:
        error = ContextLengthExceeded(
            f"Prompt and answer need {row.lengths.least} tokens of KV cache; the memory that this model can be granted holds "
            f"{most}. Ask for fewer max_tokens, shorten the prompt, or raise the memory budget.",
            tokens=row.lengths.least,
            most_tokens=most,
        )
        usage = Usage(prompt_tokens=row.prompt_tokens)
        self._ended.append(Failed(request_id=row.request_id, error=to_wire(error), usage=usage))

    # --- a row ---

    def _emit(self, row: SimulatedRow, events: list[Event]) -> bool:
        """One token; True when it was the last."""
        if row.request.echo and not row.echoed:
            row.echoed = True
            events.append(simulated_text.echo(row.request_id, row.request.prompt, row.request.logprobs))
        if row.max_tokens == 0:
            self._finish(row, "length", events)
            return True
        self._times.said(row, self._clock.now())
        token, step = row.emitted, row.script.step(row.emitted)
        row.emitted += 1
        self._emitted += 1
        speed = self._simulate.tokens_per_s
        row.due += 1 / speed if speed > 0 else 0.0
        if (event := step.event(row.request_id, token)) is not None:
            events.append(event)
        else:
            row.unsent += ((token, step.text),)
            self._say(row, row.stops.push(step.text), events)
        if row.stops.matched is not None:
            self._finish(row, "stop", events)
        elif (end := row.script.end_after(row.emitted)) is not None or row.emitted >= row.max_tokens:
            self._finish(row, end or "length", events)
        else:
            return False
        return True

    def _say(self, row: SimulatedRow, text: str, events: list[Event]) -> None:
        if text:
            events.append(simulated_text.delta(row.request_id, text, row.unsent, row.request.logprobs))
            row.unsent = ()

    def _finish(self, row: SimulatedRow, reason: FinishReason, events: list[Event]) -> None:
        self._say(row, row.stops.flush(), events)
        usage = Usage(
            prompt_tokens=row.prompt_tokens,
            completion_tokens=row.emitted,
            cached_tokens=row.cached_tokens,
            reasoning_tokens=min(row.emitted, row.script.thoughts),
        )
        stop = row.stops.matched
        events.append(Finished(request_id=row.request_id, reason=reason, usage=usage, stop_sequence=stop))

    def _drop_cancelled(self, events: list[Event]) -> None:
        for row in [row for row in (*self._rows, *self._queued) if row.cancelled]:
            self._finish(row, "cancelled", events)
            self._queued.remove(row.request_id)
        self._rows = [row for row in self._rows if not row.cancelled]

    def _break_down(self) -> None:
        abort_after, hang_after = self._simulate.abort_after_tokens, self._simulate.hang_after_tokens
        if hang_after is not None and self._emitted >= hang_after:
            self._hang()
        if abort_after is not None and self._emitted >= abort_after:
            self._clock.sleep(_LAST_WORDS_S)
            self._abort()

    def _total_bytes(self) -> int:
        tokens = sum(row.prompt_tokens + row.emitted for row in self._rows)
        return self._simulate.weights_bytes + tokens * self._simulate.kv_bytes_per_token
