"""Keeps the rows within memory: what is held is measured between ticks, and rows give way before it comes to its end.

Three things make them. The **grant**: when the next step would outgrow it, the youngest rows give way, exactly; one alone that has
outgrown it waits for a larger one. The **governor** (``engines.scheduling.governor``), which sees the end coming: of the grant
where several rows run, and of the device always; a row fails only for the device's sake, since where the grant ends giving way
is enough. And a **memory error**, which costs every cache: all rows go on from what they have said, and the row over which it
came again fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx

from engines.scheduling.admission import KV_STEP, KvCost
from engines.scheduling.governor import Action, Governor, Reading
from engines.scheduling.growth import GROWTH_WAIT_S
from engines.scheduling.measured import MeasuredCost
from engines.text.reception import Reception
from engines.text.row import Row, RowEvent, RowOutOfMemory, RowStopped
from engines.text.running_rows import RunningRows

__all__ = ["MemoryWatch"]

_SHARE_AFTER_ERROR = 0.9  # of what was held when memory ran out
_WARY_S = 60.0  # for so long no more than that is held, but by a row alone


class MemoryWatch:
    """One for the life of a batcher.

    Args:
        running: the rows that hold memory.
        reception: where those go that give way; it has the grant.
        estimate: what a row-token is said to take, where the measured bytes are to replace it.
        device_headroom: bytes that the device has left; None where it does not say.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        running: RunningRows,
        reception: Reception,
        *,
        estimate: KvCost | None,
        device_headroom: Callable[[], int | None],
        clock: Callable[[], float],
    ) -> None:
        self.governor = Governor()
        self.preemptions = 0  # since the batcher was made, as the next two
        self.sheds = 0
        self.failures = 0
        self._running = running
        self._reception = reception
        self._measured = None if estimate is None else MeasuredCost(estimate)
        self._shape: tuple[int, ...] = ()
        self._device_headroom = device_headroom
        self._device_short = False  # the device has less left than the grant
        self._clock = clock
        self._outlook: object = None  # of the next two
        self._rows: object = None  # whom that was of
        self._used = self._demand = 0  # bytes that the next step makes of what is held, and that may come on top
        self._grown = 0  # bytes, of all rows since the batcher was made, beyond what each held as it came
        self._fits = False  # and the grant holds it
        self._wary: tuple[float, int] | None = None  # until when, and the most bytes

    @property
    def bytes_per_row_token(self) -> float:
        """Measured; 0 before the first measurement, or where none is made."""
        return 0.0 if self._measured is None else self._measured.bytes_per_row_token

    @property
    def reserve_bytes(self) -> int:
        """Bytes of the grant that rows in company do without: those that the device has not got, and for a while after a memory
        error those beyond what was held then."""
        grant, device = self._reception.admission.grant_bytes, self._device_headroom()
        if grant is None:
            return 0
        missing = 0 if device is None else max(0, grant - self._used - device)
        if self._wary is None:
            return missing
        until, most = self._wary
        if self._clock() >= until:
            self._wary = None
            return missing
        return max(missing, grant - most)

    # --- before a tick ---

    def relieve(self, events: list[RowEvent]) -> None:
        """Measures, tells the governor, and does what it says."""
        running = self._running
        if not running.some:
            return
        self._measure_cost()
        now = self._clock()
        self.governor.observe(self._reading(), now)
        relief = self.governor.relief(running.sizes(), now)
        if relief.action is Action.SHED:
            self.shed()
        elif relief.row_id is not None:
            row = self._let_go(relief.row_id)
            if relief.action is Action.FAIL:
                self._fail(row, events)
            else:
                self._put_back(row)

    def _measure_cost(self) -> None:
        """What a row-token takes is learned from each shape of the batches."""
        cohorts, reception = self._running.cohorts, self._reception
        if self._measured is None or cohorts.shape == self._shape:
            return
        self._shape = cohorts.shape
        batches = [[depth] * len(batch.uids) for depth, batch in zip(cohorts.depths, cohorts.batches, strict=True)]
        self._measured.observe(batches, cohorts.kv_bytes)
        if self._measured.cost != reception.admission.cost:
            reception.admission = replace(reception.admission, cost=self._measured.cost)

    def _look(self) -> None:
        """Works out what the next step makes of what is held, where that is another than before."""
        running, admission = self._running, self._reception.admission
        outlook = running.outlook, admission
        if outlook == self._outlook:
            return
        self._outlook = outlook
        held, batch_bytes = running.held(), admission.cost.batch_bytes
        beside = running.shelf.projected_bytes(admission.cost)
        before, self._used = self._used, sum(map(batch_bytes, held)) + beside
        rows, self._rows = self._rows, running.members
        if rows == self._rows:  # what a row that comes takes was projected, and is no growth
            self._grown += max(0, self._used - before)
        self._demand = max(0, sum(map(batch_bytes, running.ends())) + beside - self._used)
        self._fits = admission.fits_cohorts(held, beside)

    def _reading(self) -> Reading:
        self._look()
        running, admission, used = self._running, self._reception.admission, self._used
        grant, device = admission.grant_bytes, self._device_headroom()
        alone = len(running.cohorts) + (running.prefill is not None) < 2
        granted = None if grant is None or alone else grant - used
        self._device_short = device is not None and (granted is None or device < granted)
        headroom = device if self._device_short else granted
        if headroom is None or self._demand <= headroom:
            return Reading(self._grown, headroom, self._demand, grant_ends_first=not self._device_short)
        step_bytes = step_ticks = 0
        if step := running.cohorts.next_step():
            batch_bytes = admission.cost.batch_bytes
            step_ticks, rows, allocated = step
            step_bytes = batch_bytes([allocated + KV_STEP] * rows) - batch_bytes([allocated] * rows)
        return Reading(self._grown, headroom, self._demand, step_bytes, step_ticks, not self._device_short)

    def shed(self) -> None:
        """Gives back what nobody needs to go on."""
        self.sheds += 1
        self._running.shelf.clear()
        mx.clear_cache()

    def make_room(self, events: list[RowEvent]) -> None:
        """Preempts the youngest rows while the next step would outgrow the grant.

        One that has so alone waits for a larger grant; it ends where it is if there can be none.
        """
        self._look()
        if self._fits:
            return
        running, admission = self._running, self._reception.admission
        beside = running.shelf.projected_bytes(admission.cost)
        if beside and not admission.fits_cohorts(running.held(), beside):
            running.shelf.clear()
        while (held := running.held()) and not admission.fits_cohorts(held):
            alone = sum(map(len, held)) == 1
            if running.prefill is not None:
                self._put_back(self._let_go(running.prefill.row.id))
                continue
            youngest = [*running.cohorts.rows.values()][-1].row
            if alone and youngest.most_tokens is not None and youngest.most_tokens < held[0][0]:
                self._let_go(youngest.id)
                events.append(RowStopped(youngest.id))
                continue
            self._put_back(self._let_go(youngest.id, self._clock() + GROWTH_WAIT_S if alone else None))

    # --- after a memory error ---

    def recover(self, suspects: dict[int, int], events: list[RowEvent]) -> None:
        """Memory ran out over some of these rows, by their lengths: every cache goes, and the rows start again.

        ``suspects`` may be empty: then any of them may have been it.
        """
        self._look()
        used = self._used
        rows = self._running.take_all()
        mx.clear_cache()
        if not rows:
            return
        now = self._clock()
        self._wary = now + _WARY_S, int(used * _SHARE_AFTER_ERROR)
        mine = {row.id: suspects.get(row.id, 0) for row in rows if not suspects or row.id in suspects}
        relief = self.governor.memory_error(mine or {row.id: len(row.tokens) for row in rows}, now)
        # Each goes to the front of its class, so the last to go is the first to begin; the suspect begins last.
        rows.reverse()
        for row in sorted(rows, key=lambda row: row.id != relief.row_id):
            if row.id == relief.row_id and relief.action is Action.FAIL:
                self._fail(row, events)
            else:
                self._put_back(row)

    # --- rows ---

    def _let_go(self, row_id: int, waits_until: float | None = None) -> Row:
        row = self._running.take(row_id, waits_until)
        assert row is not None
        return row

    def _put_back(self, row: Row) -> None:
        self.preemptions += 1
        self._reception.put_back(row)

    def _fail(self, row: Row, events: list[RowEvent]) -> None:
        self.failures += 1
        self.governor.forget(row.id)
        events.append(RowOutOfMemory(row.id, len(row.tokens)))
