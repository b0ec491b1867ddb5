"""A device with a clock of its own, and a batcher without a model that asks the policies as the real one does."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engines.scheduling.admission import KV_STEP, Decision, KvAdmission, KvCost
from engines.scheduling.cohorts import MOST_COHORTS, mergeable, place
from engines.scheduling.deferral import DeferredRows
from engines.scheduling.governor import Action, Governor, Reading
from engines.scheduling.measured import MeasuredCost
from engines.scheduling.pacing import GRACE_S, Pacer
from engines.scheduling.settings import SchedulingSettings
from engines.scheduling.waiting import Priority, WaitingRows

MOST_TICKS = 60_000
MERGE_EVERY = 16  # decode ticks

Outcome = Literal["finished", "cancelled", "refused", "outgrown", "failed"]


@dataclass(frozen=True)
class Device:
    """Seconds of a chunk and of a step, with this much noise (0 to 1), and the bytes there really are."""

    chunk_fixed_s: float = 0.02
    chunk_token_s: float = 0.001
    step_fixed_s: float = 0.02
    step_row_s: float = 0.001
    noise: float = 0.0
    kv_factor: float = 1.0  # real by estimated bytes
    total_bytes: Callable[[float], int | None] = lambda now: None  # that others leave of the device, at a time
    memory_errors: frozenset[int] = frozenset()  # ticks with rows under way that end in one


@dataclass(frozen=True)
class Request:
    """``answer`` tokens come, of ``max_tokens``; ``expected`` of them are projected (None: all)."""

    at_s: float = 0.0
    prompt: int = 100
    answer: int = 50
    max_tokens: int = 50
    expected: int | None = None
    priority: Priority = "normal"
    cancel_s: float | None = None  # after it came


@dataclass
class Row:
    id: int
    request: Request
    said: int = 0
    read: int = 0  # tokens in the cache
    began_s: float | None = None  # first of its prefill
    first_s: float | None = None  # first token
    ended_s: float | None = None
    outcome: Outcome | None = None
    preempted: int = 0
    paced_s: float = 0.0  # for which its prompt was held back
    read_s: float = 0.0  # of its own chunks

    @property
    def length(self) -> int:
        """Prompt, and answer so far."""
        return self.request.prompt + self.said

    @property
    def end(self) -> int:
        return self.request.prompt + self.request.max_tokens

    @property
    def projected(self) -> int:
        expected = self.request.max_tokens if self.request.expected is None else self.request.expected
        return max(self.length + 1, self.request.prompt + min(expected, self.request.max_tokens))


@dataclass(frozen=True)
class Tick:
    kind: Literal["prefill", "decode"]
    seconds: float
    protected: bool  # a row that is not fresh decodes, beside a prompt that is not overdue
    held_back: int  # prompts that pacing held back at the last step


@dataclass
class Simulator:
    """``run`` until every request has ended. What happened is in the fields."""

    device: Device
    requests: Sequence[Request]
    grant: int | None = None
    width: int = 8
    cost: KvCost = field(default_factory=lambda: KvCost(1, layer_bytes_per_token=1))
    pass_bytes: int | None = None
    settings: SchedulingSettings = field(default_factory=SchedulingSettings)
    seed: int = 0

    def __post_init__(self) -> None:
        self.now = 0.0
        self.pacer = Pacer(self.settings)
        self.governor = Governor()
        self.waiting = WaitingRows[Row]()
        self.deferred = DeferredRows(self.settings.defer_ceiling_s)
        self.measured = MeasuredCost(self.cost)
        self.cohorts: list[list[Row]] = []
        self.prefill: Row | None = None
        self.joins: list[Row] | None = None  # the cohort that the row being read is to join; None: a new one
        self.order: list[Row] = []  # as they joined
        self.rows = {i: Row(i, request) for i, request in enumerate(self.requests)}
        self.coming = sorted(self.rows.values(), key=lambda row: (row.request.at_s, row.id))
        self.ticks: list[Tick] = []
        self.bands: list[tuple[float, str]] = []  # when each was entered
        self.reliefs: list[tuple[float, Action, int | None]] = []
        self.recoveries: list[tuple[float, Action, int | None]] = []  # after memory errors
        self.overdue_starts = 0
        self.peak = 0  # real bytes, copies included
        self.overrun = 0  # bytes beyond what the device had
        self.most_cohorts = 0
        self.held_back = 0
        self.decode_ages: dict[int, float] = {}
        self.random = random.Random(self.seed)

    # --- what the device has ---

    @property
    def admission(self) -> KvAdmission:
        return KvAdmission(self.measured.cost, self.grant)

    def lengths(self, of: Callable[[Row], int]) -> list[list[int]]:
        """By cohort, with the row being read where it is to go."""
        batches = [[of(row) for row in rows] for rows in self.cohorts]
        if self.prefill is not None:
            if self.joins in self.cohorts and self.joins is not None:
                batches[self.cohorts.index(self.joins)].append(of(self.prefill))
            else:
                batches.append([of(self.prefill)])
        return batches

    def real_batches(self) -> list[list[int]]:
        batches = [[row.read for row in rows] for rows in self.cohorts]
        return batches + ([[self.prefill.read]] if self.prefill is not None and self.prefill.read else [])

    def real_bytes(self, *, copied: Sequence[int] = ()) -> int:
        held = sum(map(self.cost.batch_bytes, self.real_batches())) + self.cost.copy_bytes(copied)
        return int(held * self.device.kv_factor)

    def note_peak(self, copied: Sequence[int] = ()) -> None:
        """Where a batch's arrays are made anew, one layer of it is there twice; not counted of a row alone."""
        self.peak = max(self.peak, self.real_bytes(copied=copied if self.running > 1 else ()))

    @property
    def running(self) -> int:
        return len(self.order) + (self.prefill is not None)

    @property
    def withheld(self) -> int:
        """Bytes of the grant that the device cannot give; an idle engine tries."""
        total = self.device.total_bytes(self.now)
        return 0 if total is None or self.grant is None or not self.running else max(0, self.grant - total)

    def spend(self, seconds: float) -> float:
        seconds *= 1 + self.device.noise * self.random.uniform(-1, 1)
        self.now += seconds
        return seconds

    # --- a tick ---

    def run(self) -> Simulator:
        for tick in range(MOST_TICKS):
            self.arrive()
            if not self.running and not len(self.waiting):
                if not self.coming:
                    return self
                self.now = max(self.now, self.coming[0].request.at_s)
                continue
            if self.running and tick in self.device.memory_errors:
                self.lose_memory()
            self.watch()
            self.make_room()
            self.start()
            if self.prefill is None and not self.order:
                assert not len(self.waiting), "an idle engine let a row wait"
                continue
            if self.pacer.turn(prefilling=self.prefill is not None, decoding=bool(self.order)) == "prefill":
                self.read_chunk()
            else:
                self.decode()
        raise AssertionError("it does not end")

    def arrive(self) -> None:
        while self.coming and self.coming[0].request.at_s <= self.now:
            row = self.coming.pop(0)
            self.waiting.add(row.id, row, row.request.priority, row.request.at_s)
        for row in self.rows.values():
            cancel_s = row.request.cancel_s
            if cancel_s is None or row.outcome is not None or row in self.coming:
                continue
            if self.now >= row.request.at_s + cancel_s:
                self.leave(row, "cancelled")

    def watch(self) -> None:
        self.measured.observe(self.real_batches(), self.real_bytes())
        used = self.real_bytes()
        total = self.device.total_bytes(self.now)
        device = None if total is None else total - used
        self.overrun = max(self.overrun, 0 if device is None else -device)
        left = [] if self.grant is None or self.running < 2 else [self.grant - used]
        left += [] if device is None else [device]
        ends = sum(map(self.admission.cost.batch_bytes, self.lengths(lambda row: row.end)))
        step_bytes, step_ticks = min(
            (
                (
                    self.cost.batch_bytes([max(batch) + KV_STEP] * len(batch)) - self.cost.batch_bytes(batch),
                    -max(batch) % KV_STEP,
                )
                for batch in self.real_batches()
            ),
            key=lambda step: step[1],
            default=(0, 0),
        )
        grant_ends_first = device is None or (len(left) == 2 and left[0] < left[1])
        reading = Reading(used, min(left, default=None), max(0, ends - used), step_bytes, step_ticks, grant_ends_first)
        band = self.governor.observe(reading, self.now)
        if not self.bands or self.bands[-1][1] != band:
            self.bands.append((self.now, band))
        sizes = {row.id: row.length for row in self.order}
        if self.prefill is not None:
            sizes[self.prefill.id] = self.prefill.length
        action, row_id = self.governor.relief(sizes, self.now)
        if action is not Action.NONE:
            self.reliefs.append((self.now, action, row_id))
        if action is Action.PREEMPT and row_id is not None:
            self.preempt(self.rows[row_id])
        elif action is Action.FAIL and row_id is not None:
            self.leave(self.rows[row_id], "failed")

    def make_room(self) -> None:
        """Rows give way by what they hold, the youngest first; one alone ends where the grant does."""
        while self.running and not self.admission.fits_cohorts(self.lengths(lambda row: row.length + 1)):
            youngest = self.prefill or self.order[-1]
            if self.running == 1:
                self.leave(youngest, "outgrown")
            else:
                self.preempt(youngest)

    def start(self) -> None:
        if self.prefill is not None or not self.governor.admits(self.running):
            return
        deferred = list[int]()
        if self.running < self.width:
            for row in self.waiting:
                decision, cohort = self.place(row, row.projected, lambda row: max(self.fitted(row), row.length + 1))
                if decision is Decision.GROW:
                    self.leave(row, "refused")
                    continue
                if decision is Decision.WAIT:
                    deferred.append(row.id)
                    if not self.deferred.overdue(row.id, self.now):
                        break
                    decision, cohort = self.place(row, row.length + 1, lambda row: row.length + 1)
                    if decision is not Decision.ADMIT:
                        break
                    self.overdue_starts += 1
                self.waiting.remove(row.id)
                self.prefill, row.read = row, 0
                row.began_s = self.now if row.began_s is None else row.began_s
                self.joins = self.cohorts[cohort] if cohort < len(self.cohorts) else None
                break
        self.deferred.update(deferred, self.now)

    def fitted(self, row: Row) -> int:
        longest = self.admission.longest_row
        return row.projected if longest is None else min(row.projected, longest)

    def place(self, row: Row, length: int, of: Callable[[Row], int]) -> tuple[Decision, int]:
        longest = self.admission.longest_row
        if longest is not None:
            length = max(row.length + 1, min(length, longest))
        return place(self.admission, length, self.lengths(of), self.withheld, pass_bytes=self.pass_bytes)

    # --- work ---

    def read_chunk(self) -> None:
        row = self.prefill
        assert row is not None
        tokens = min(self.governor.chunk(self.pacer.chunk_tokens), row.length - row.read)
        protected = self.protected
        row.read += tokens
        self.note_peak([row.read])
        seconds = self.spend(self.device.chunk_fixed_s + tokens * self.device.chunk_token_s)
        row.read_s += seconds
        self.pacer.observe(tokens, seconds)
        self.ticks.append(Tick("prefill", seconds, protected, self.held_back))
        self.decode_ages = {row_id: age + seconds for row_id, age in self.decode_ages.items()}
        if row.read == row.length:
            self.join(row)

    def join(self, row: Row) -> None:
        self.prefill = None
        if self.joins is not None and self.joins in self.cohorts:
            self.joins.append(row)
            copied = [other.read for other in self.joins]
        else:
            self.cohorts.append([row])
            copied = []
        self.order.append(row)
        self.note_peak(copied)
        self.most_cohorts = max(self.most_cohorts, len(self.cohorts))
        self.decode_ages[row.id] = 0.0

    def decode(self) -> None:
        device, rows, protected = self.device, list(self.order), self.protected
        assert rows, "a turn for rows that decode, and there are none"
        behind = [] if self.prefill is None or len(self.deferred) or self.running >= self.width else self.waiting.ids()
        seconds = self.spend(device.step_fixed_s * len(self.cohorts) + device.step_row_s * len(rows))
        if self.prefill is not None:
            self.prefill.paced_s += seconds
        waiting = behind if self.prefill is None else [self.prefill.id, *behind]
        self.pacer.decoded([row.id for row in rows], seconds, waiting, self.deferred.ids)
        self.held_back = len(waiting)
        self.ticks.append(Tick("decode", seconds, protected, self.held_back))
        for cohort in self.cohorts:
            for row in cohort:
                row.read += 1
            if max(row.read for row in cohort) % KV_STEP == 1:
                self.note_peak([row.read for row in cohort])
        for row in rows:
            row.said += 1
            row.first_s = self.now if row.first_s is None else row.first_s
            self.decode_ages[row.id] += seconds
            if row.said >= row.request.answer:
                self.leave(row, "finished")
        self.note_peak()
        if len(self.ticks) % MERGE_EVERY == 0:
            pair = mergeable(self.admission, self.lengths(self.fitted)[: len(self.cohorts)], pass_bytes=self.pass_bytes)
            if pair is not None and self.prefill is None:
                self.cohorts[pair[0]] += self.cohorts.pop(pair[1])
                self.note_peak([row.read for row in self.cohorts[pair[0]]])
        assert len(self.cohorts) <= MOST_COHORTS

    @property
    def protected(self) -> bool:
        return not self.pacer.overdue and any(age >= GRACE_S for age in self.decode_ages.values())

    # --- leaving ---

    def take_out(self, row: Row) -> None:
        self.waiting.remove(row.id)
        if self.prefill is row:
            self.prefill = None
        if row in self.order:
            self.order.remove(row)
            cohort = next(rows for rows in self.cohorts if row in rows)
            cohort.remove(row)
            if not cohort:
                self.cohorts = [rows for rows in self.cohorts if rows is not cohort]
        self.decode_ages.pop(row.id, None)
        row.read = 0

    def leave(self, row: Row, outcome: Outcome) -> None:
        assert row.outcome is None
        self.take_out(row)
        row.outcome, row.ended_s = outcome, self.now
        self.governor.forget(row.id)

    def preempt(self, row: Row) -> None:
        self.take_out(row)
        row.preempted += 1
        self.waiting.put_back(row.id, row, row.request.priority, self.now)

    def lose_memory(self) -> None:
        """All caches are lost; the largest row waits or fails, the others begin again."""
        rows = [*self.order, *([self.prefill] if self.prefill is not None else [])]
        relief = self.governor.memory_error({row.id: row.length for row in rows}, self.now)
        self.recoveries.append((self.now, relief.action, relief.row_id))
        for row in reversed(rows):
            if row.id == relief.row_id and relief.action is Action.FAIL:
                self.leave(row, "failed")
            else:
                self.preempt(row)
