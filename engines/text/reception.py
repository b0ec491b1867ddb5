"""The rows that wait, and which of them may begin: by priority, by place in the batch, and by memory.

Nobody overtakes a row of the same class, but where only a larger grant could help that row. One that has to wait for memory is
deferred, never failed: a larger grant is asked for, and past the ceiling of ``engines.scheduling.deferral`` it is decided by
what rows hold and not by what they may grow to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from engines.scheduling.admission import Decision, KvAdmission
from engines.scheduling.cohorts import Placement, place
from engines.scheduling.deferral import DeferredRows
from engines.scheduling.growth import asked, asked_ahead
from engines.scheduling.waiting import WaitingRows
from engines.text.live_row import LiveRow
from engines.text.row import Row, RowEvent, RowRefused, RowStopped

__all__ = ["Company", "Opening", "Reception"]

_COMPANY_ASK_S = (
    5.0  # a larger grant that only spares a row's wait is asked for so long: less than makes the gateway drain others
)

log = logging.getLogger("innkeeper.worker")


class Company(NamedTuple):
    """The rows that hold memory, batch by batch, in tokens: what they are projected to grow to, and what they hold now.

    ``beside`` are bytes that others hold.
    """

    projected: Sequence[Sequence[int]]
    held: Sequence[Sequence[int]]
    beside: int = 0

    @property
    def rows(self) -> int:
        return sum(map(len, self.held))


class Opening(NamedTuple):
    """A row that may begin, and the index of the batch that it is to join; that of the last and one for a new one."""

    row: Row
    batch: int


class Reception:
    """Rows from their submission until they begin, and again from their preemption.

    Args:
        admission: which rows the KV grant allows; may be replaced at any time.
        width: rows that run together at most; may be changed at any time.
        ceiling_s: how long a row may be deferred before the rule changes.
        pass_bytes: see :func:`engines.scheduling.cohorts.place`.
        clock: seconds, monotonic.
    """

    def __init__(
        self, admission: KvAdmission, width: int, ceiling_s: float, pass_bytes: int | None, clock: Callable[[], float]
    ) -> None:
        self.admission = admission
        self.width = width
        self.waiting = WaitingRows[Row]()
        self.deferred = DeferredRows(ceiling_s)
        self._pass_bytes = pass_bytes
        self._clock = clock
        self._most_bytes: int | None = None  # the largest grant there could be, once that was said of this one
        self._lacks: tuple[int, int] | None = None  # the row at the head and the bytes it lacks beside those that run
        self._asked_company: dict[int, float] = {}  # since when

    @property
    def actionable(self) -> bool:
        """Whether some wait may end without anybody's help: a row can begin, or give up."""
        return any(self.admission.missing(row.least_tokens) == 0 or self._gives_up(row) for row in self.waiting)

    def submit(self, row: Row) -> None:
        self.waiting.add(row.id, row, row.priority, self._clock())

    def put_back(self, row: Row) -> None:
        """To the front of its class. Its handicap counts from its arrival, or it would wait for it again each time."""
        self.waiting.put_back(row.id, row, row.priority, row.arrived_at)

    def remove(self, row_id: int) -> Row | None:
        self._asked_company.pop(row_id, None)
        if row_id in self.deferred:
            self.deferred.update([other for other in self.deferred.ids if other != row_id], self._clock())
        return self.waiting.remove(row_id)

    def clear(self) -> None:
        self.waiting.clear()
        self._asked_company.clear()
        self._lacks = None

    def projected(self, row: Row) -> int:
        """The length to which a row is projected to grow, in tokens."""
        longest = self.admission.longest_row
        return row.expected_tokens if longest is None else max(row.least_tokens, min(row.expected_tokens, longest))

    # --- who begins ---

    def next(self, company: Company, events: list[RowEvent], *, asks_only: bool = False) -> Opening | None:
        """The first row that may begin beside these, which stays here until it is removed. Rows that give up are told so.

        ``asks_only``: nobody is deferred by the answer.
        """
        now = self._clock()
        deferred = list[int]()
        opening = lacks = None
        for row in () if company.rows >= self.width else self.waiting:
            placement = self._placed(self.projected(row), company.projected, company.beside)
            if placement.decision is Decision.ADMIT:
                opening = Opening(row, placement.cohort)
                break
            if placement.decision is Decision.GROW and self._gives_up(row):
                self.remove(row.id)
                events.append(RowStopped(row.id))
                continue
            deferred.append(row.id)
            if placement.decision is Decision.WAIT:
                opening = None if asks_only else self._overdue(row, company, now)
                lacks = row.id, self._lacking(row, company)
                break
        if not asks_only:
            self.deferred.update(deferred, now)
            self._lacks = lacks
        return opening

    def full(self) -> None:
        """There is no place: nobody waits for memory."""
        if self.deferred:
            self.deferred.update((), self._clock())
        self._lacks = None

    def _placed(self, length: int, batches: Sequence[Sequence[int]], beside: int) -> Placement:
        return place(self.admission, length, batches, beside, pass_bytes=self._pass_bytes)

    def _overdue(self, row: Row, company: Company, now: float) -> Opening | None:
        """Past the ceiling what rows hold decides, the row's own prompt included."""
        if not self.deferred.overdue(row.id, now):
            return None
        placement = self._placed(len(row.tokens) + 1, company.held, company.beside)
        if placement.decision is not Decision.ADMIT:
            return None
        log.warning(
            "request %d was deferred for %.0f s: it begins beside rows that may yet need its memory",
            row.id,
            self.deferred.waited_s(row.id, now),
        )
        return Opening(row, placement.cohort)

    def _lacking(self, row: Row, company: Company) -> int:
        """Bytes beyond the grant that the row takes beside these, in a batch of its own."""
        admission, cost = self.admission, self.admission.cost
        assert admission.grant_bytes is not None
        batches = [*company.projected, [self.projected(row)]]
        needed = sum(map(cost.batch_bytes, batches)) + max(map(cost.copy_bytes, batches)) + company.beside
        needed += admission.transient_bytes + admission.reserve_bytes
        return max(1, needed - admission.grant_bytes)

    def _gives_up(self, row: Row) -> bool:
        return row.waits_until is not None and self._clock() >= row.waits_until

    # --- a larger grant ---

    def growth(self, alone: LiveRow | None) -> tuple[int, int] | None:
        """The row for which a larger grant is asked, and the bytes beyond the grant.

        1. ``alone``, the only row where no other runs or begins, soon outgrows the grant.
        2. The first row that the grant cannot hold even alone.
        3. The first row, where it waits for memory beside others: for a while, and no more than there can be.
        """
        longest = self.admission.longest_row
        if longest is None:
            return None
        if alone is not None:
            wanted = asked_ahead(alone.row.lengths, alone.length, longest)
            if wanted is not None:
                return alone.row.id, self.admission.missing(wanted)
        for row in self.waiting:
            wanted = asked(row.lengths, longest)
            if wanted is not None:
                return row.id, self.admission.missing(wanted)
        return self._company_growth()

    def _company_growth(self) -> tuple[int, int] | None:
        if self._lacks is None or self._lacks[0] not in self.waiting:
            return None
        row_id, lacking = self._lacks
        now = self._clock()
        if now - self._asked_company.setdefault(row_id, now) >= _COMPANY_ASK_S:
            return None
        if self._most_bytes is not None:
            assert self.admission.grant_bytes is not None
            lacking = min(lacking, self._most_bytes - self.admission.grant_bytes)
        return (row_id, lacking) if lacking > 0 else None

    def set_grant(self, grant_bytes: int, transient_bytes: int) -> None:
        """What KV may hold from now on, and what of it is kept for steps."""
        self.admission = replace(self.admission, grant_bytes=grant_bytes, transient_bytes=transient_bytes)
        self._most_bytes = None
        self._lacks = None

    def deny_growth(self, row_id: int, most_bytes: int) -> list[RowEvent]:
        """No grant will ever be larger than this. What a row that waits then ends with, if it cannot do with so much."""
        self._most_bytes = most_bytes
        most = self.admission.cost.longest_row(most_bytes)
        row = self.waiting.get(row_id)
        if most is None or row is None:
            return []
        if row.least_tokens <= most:
            self.waiting.replace(row_id, replace(row, most_tokens=most))
            return []
        self.remove(row_id)
        return [RowStopped(row_id) if row.resumed else RowRefused(row_id, row.least_tokens, most)]
