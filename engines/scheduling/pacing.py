"""Whose turn it is: rows that decode keep most of their speed while a prompt is read, and the prompt is not held back for ever.

After a chunk of prefill beside rows that decode, these decode for ``ratio`` × the chunk's time before the next. They then keep
ratio / (ratio + 1) of their speed. The retention is a floor, and what a prompt costs beside its chunks (a first chunk that does not
wait, colder caches, the join) comes on top, so the aim is a margin above it: with kept = r + margin the ratio of a retention r is
kept / (1 - kept).

Where decode steps beside a prompt take so much longer than they would alone (``quiet_step.py``) that less than the retention is
kept, the ratio is raised, up to twice its size, and lowered again when more than the aim is kept. That is judged over DWELL_S
at a time.

That is for one prompt. Where several could be read, had the rows that decode not the time, each has its share of it: the ratio,
without the margin, is divided by their number, and rows keep at least a third of their speed. Else a batch would never fill, to the
harm of all.

Nobody is held back for a row that has just begun: while all rows are fresh, chunks and steps alternate, so that prompts that come
together are read together. And once pacing has held a prompt back for ``prefill_deadline_s`` in all, prefill takes half of the time
until that prompt has been read. Waits for memory are no waits for pacing.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from engines.scheduling.chunking import FIRST_CHUNK, LARGEST_CHUNK, LIMIT_S, TARGET_S, ChunkSize
from engines.scheduling.quiet_step import QuietStep
from engines.scheduling.settings import SchedulingSettings

__all__ = ["DWELL_S", "FIRST_CHUNK", "GRACE_S", "LARGEST_CHUNK", "LIMIT_S", "MARGIN", "TARGET_S", "Pacer"]

GRACE_S = 2.0  # from its first token, a row is fresh
DWELL_S = 5.0  # of prefill and decode beside each other, before the ratio changes
MARGIN = 0.04  # above the retention, that is aimed at; of a high one a fifth of what it leaves
_MOST_RAISED = 2.0
_RAISE = 1.25
_OVERDUE_RATIO = 1.0
_CROWDED_RATIO = 0.5
_NEWEST = 1 / 8  # weight of the newest measurement


class Pacer:
    """Gives prefill and decode their turns. One for the whole life of an engine.

    Every tick is ``turn``, and then ``observe`` of the chunk or ``decoded`` of the step. Seconds are what device and host took.
    """

    def __init__(self, settings: SchedulingSettings | None = None) -> None:
        settings = settings or SchedulingSettings()
        self._retention = settings.retention
        self._aim = settings.retention + min(MARGIN, (1.0 - settings.retention) / 5)
        self._fixed = settings.prefill_ratio is not None
        self._least_ratio = (
            settings.prefill_ratio if settings.prefill_ratio is not None else self._aim / (1.0 - self._aim)
        )
        self._plain_ratio = settings.retention / (1.0 - settings.retention)
        self._ratio = self._least_ratio
        self._deadline_s = settings.prefill_deadline_s
        self._chunk = ChunkSize(settings.prefill_tick_ms / 1000)
        self._prefilled_last = False
        self._beside = False  # the last chunk was beside rows that decode
        self._chunk_s = 0.0  # of the last chunk, where it was
        self._decoded_s = 0.0  # since that chunk
        self._ages: dict[int, float] = {}  # seconds since each row that decodes did so first
        self._held_back = 0  # rows that waited for pacing at the last step
        self._waited: dict[int, float] = {}  # seconds for which pacing has held back each row that waits
        self._quiet = QuietStep()
        # Since the ratio was last judged: of both, of the steps among them, and of these steps with nothing beside them.
        self._shared_s = self._steps_s = self._quiet_s = 0.0
        self._step_s: float | None = None
        self._prefill_rate = self._decode_rate = 0.0

    @property
    def chunk_tokens(self) -> int:
        """Tokens of the next prefill chunk."""
        return self._chunk.tokens

    @property
    def ratio(self) -> float:
        """Seconds of decode for each of prefill, now."""
        ratio = self._ratio
        if not self._fixed and self._held_back > 1:
            ratio *= self._plain_ratio / self._least_ratio  # no floor is promised in a crowd
            ratio = max(ratio / self._held_back, min(ratio, _CROWDED_RATIO))
        return min(ratio, _OVERDUE_RATIO) if self.overdue else ratio

    @property
    def overdue(self) -> bool:
        """Whether pacing has held a row back for too long."""
        return any(waited >= self._deadline_s for waited in self._waited.values())

    @property
    def chunk_cost_s(self) -> float:
        """Of the last chunk beside rows that decode; 0 before it."""
        return self._chunk_s

    @property
    def step_cost_s(self) -> float:
        """Of a decode step of all rows, lately; 0 before the first."""
        return self._step_s or 0.0

    @property
    def prefill_tokens_s(self) -> float:
        """Prompt tokens a second of prefill, lately; 0 before the first."""
        return self._prefill_rate

    @property
    def decode_tokens_s(self) -> float:
        """Tokens a second of decode, of all rows, lately; 0 before the first."""
        return self._decode_rate

    def turn(self, *, prefilling: bool, decoding: bool) -> Literal["prefill", "decode"]:
        """Whose tick the next one is. At least one of the two must have work."""
        prefill = prefilling and (not decoding or self._may_prefill())
        self._prefilled_last = prefill
        self._beside = prefill and decoding
        return "prefill" if prefill else "decode"

    def observe(self, tokens: int, seconds: float) -> None:
        """A prefill chunk of this many tokens lasted this long."""
        self._chunk.observe(tokens, seconds)
        self._prefill_rate = _newer(self._prefill_rate, tokens / max(seconds, 1e-6))
        self._decoded_s = 0.0
        self._chunk_s = seconds if self._beside else 0.0
        if self._beside:
            self._shared_s += seconds
            self._ages = {row_id: age + seconds for row_id, age in self._ages.items()}

    def decoded(
        self,
        rows: Collection[int],
        seconds: float,
        waiting: Collection[int] = (),
        deferred: Collection[int] = (),
        *,
        tokens: int = 0,
    ) -> None:
        """A step of these rows lasted so long.

        Args:
            rows: ids of those that decoded.
            seconds: of the step.
            waiting: ids of the row whose prompt is being read, and of those behind it for which there is a place.
            deferred: ids of rows that wait for memory; their time is kept, and does not run.
            tokens: that it attended over, of all rows.
        """
        self._step_s = seconds if self._step_s is None else _newer(self._step_s, seconds)
        self._decode_rate = _newer(self._decode_rate, len(rows) / max(seconds, 1e-6))
        self._decoded_s += seconds
        self._ages = {row_id: self._ages.get(row_id, 0.0) + seconds for row_id in rows}
        waited = {row_id: self._waited.get(row_id, 0.0) + seconds for row_id in waiting}
        self._waited = {row_id: self._waited.get(row_id, 0.0) for row_id in deferred} | waited
        self._held_back = len(waiting)
        if not waiting:
            self._quiet.observe(len(rows), tokens, seconds)
        if len(waiting) != 1:
            self._judge_anew()
            return
        self._shared_s += seconds
        self._steps_s += seconds
        quiet = self._quiet.expected(len(rows), tokens)
        self._quiet_s += seconds if quiet is None else quiet

    def forget(self, row_id: int) -> None:
        """The row has left, and its id will not come again: nobody is held back in its name."""
        self._waited.pop(row_id, None)
        self._held_back = min(self._held_back, len(self._waited))

    def _may_prefill(self) -> bool:
        """Whether a chunk may run now beside rows that decode. Never two in succession."""
        if self._prefilled_last:
            return False
        if self._step_s is None or not any(age >= GRACE_S for age in self._ages.values()):
            self._judge_anew()
            return True
        if self._decoded_s < self.ratio * self._chunk_s:
            return False
        self._judge()
        return True

    def _judge(self) -> None:
        """Raises or lowers the ratio by what rows have kept of their speed."""
        if self._fixed or self.overdue or self._shared_s < DWELL_S:
            return
        kept = min(self._quiet_s, self._steps_s) / self._shared_s
        if kept < self._retention:
            self._ratio = min(self._ratio * _RAISE, self._least_ratio * _MOST_RAISED)
        elif kept > self._aim:
            self._ratio = max(self._ratio / _RAISE, self._least_ratio)
        self._judge_anew()

    def _judge_anew(self) -> None:
        self._shared_s = self._steps_s = self._quiet_s = 0.0


def _newer(mean: float, value: float) -> float:
    return mean + _NEWEST * (value - mean) if mean > 0 else value
