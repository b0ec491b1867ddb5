"""How near memory is to its end, and what is done about it.

The band comes from a rate, not from a level: how many ticks are left before the grant, or the device, runs out. Memory that is
full and does not grow is what a grant is for.

======  ==================  =====================================================================================
band    ticks left          what it means
======  ==================  =====================================================================================
green   YELLOW and more     nothing
yellow  fewer than YELLOW   no row begins beside others; prefill chunks have half their size
orange  fewer than ORANGE   also: caches are shed, then the largest of several rows is preempted, again and again
red     fewer than RED      also: the largest row fails, where it is the device that ends and nothing else can be done
======  ==================  =====================================================================================

A band worsens at once and one at a time, and gets better one at a time, each after DWELL_S. Two reliefs are SETTLE_TICKS apart, so
that the first is seen before the second; of those that shed or preempt there are at most SHEDS_A_MINUTE. An idle engine may
always begin a row.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NamedTuple

__all__ = [
    "DWELL_S",
    "ORANGE",
    "RED",
    "SETTLE_TICKS",
    "SHEDS_A_MINUTE",
    "YELLOW",
    "Action",
    "Band",
    "Governor",
    "Reading",
    "Relief",
]

Band = Literal["green", "yellow", "orange", "red"]
_BANDS: Final[tuple[Band, ...]] = ("green", "yellow", "orange", "red")

YELLOW, ORANGE, RED = _LIMITS = (256, 64, 8)  # ticks
DWELL_S = 1.0
SETTLE_TICKS = 4
SHEDS_A_MINUTE = 6
_LEAVES = 1.5  # times a band's ticks must be left before it gets better
_MOST_RATE = 4.0  # times the growth that was measured in the long run: one row's joining is no trend
_FAST, _SLOW = 1 / 16, 1 / 256  # weights of the newest tick


@dataclass(frozen=True)
class Reading:
    """Memory as it is between two ticks, in bytes.

    Attributes:
        used_bytes: what rows hold; only by how much it rises counts.
        headroom_bytes: the less of what grant and device leave beside it; None: no bound.
        demand_bytes: what the rows that run may still take until they end; None: not known. With as much headroom the band
            is green, however fast they grow.
        step_bytes: what the next allocation takes at once, ``step_ticks`` from now; 0: not known.
        grant_ends_first: and not the device. Rows then give way and none fails: the grant is ours to divide.
    """

    used_bytes: int
    headroom_bytes: int | None
    demand_bytes: int | None = None
    step_bytes: int = 0
    step_ticks: int = 0
    grant_ends_first: bool = False


class Action(Enum):
    """What to do now about the band."""

    NONE = "none"
    SHED = "shed"  # give caches back that nobody needs to go on
    PREEMPT = "preempt"  # requeue this row, layer by layer; its client sees a pause
    FAIL = "fail"  # end this row with an error


class Relief(NamedTuple):
    """``row_id`` is None unless one is preempted or fails."""

    action: Action
    row_id: int | None = None


class Governor:
    """Watches memory, tick by tick. ``now`` is in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._band = 0
        self._since = -math.inf  # when the band was entered
        self._growth = _Growth()
        self._headroom: int | None = None
        self._ticks_left = math.inf
        self._grant_ends_first = False
        self._settled = SETTLE_TICKS  # ticks since the last relief
        self._shed = False  # caches, since the band was last better than orange
        self._reliefs: deque[float] = deque()  # times of those of the last minute that shed or preempted
        self._suspects: set[int] = set()  # the largest rows of memory errors
        self._failed: set[int] = set()
        self.preemptions = 0
        self.sheds = 0
        self.failures = 0

    @property
    def band(self) -> Band:
        return _BANDS[self._band]

    @property
    def headroom_bytes(self) -> int | None:
        """Of the last reading."""
        return self._headroom

    @property
    def growth_bytes_s(self) -> float:
        """Bytes a second, lately."""
        return self._growth.bytes_s

    @property
    def ticks_left(self) -> float:
        """Until memory runs out, at the last reading; infinite where it will not."""
        return self._ticks_left

    def admits(self, running: int) -> bool:
        """Whether a row may begin beside so many."""
        return self._band == 0 or running == 0

    def chunk(self, tokens: int) -> int:
        """The size of a prefill chunk that would have so many tokens."""
        return tokens if self._band == 0 else max(1, tokens // 2)

    def observe(self, reading: Reading, now: float) -> Band:
        """Once a tick. Answers the band."""
        self._growth.add(reading.used_bytes, now)
        self._headroom = reading.headroom_bytes
        self._grant_ends_first = reading.grant_ends_first
        self._ticks_left = _ticks_left(reading, self._growth.bytes_tick)
        self._settled += 1
        wanted = sum(self._ticks_left < limit for limit in _LIMITS)
        if wanted > self._band:
            self._enter(self._band + 1, now)
        elif (
            wanted < self._band
            and now - self._since >= DWELL_S
            and self._ticks_left >= _LEAVES * _LIMITS[self._band - 1]
        ):
            self._enter(self._band - 1, now)
        return self.band

    def relief(self, rows: Mapping[int, int], now: float) -> Relief:
        """What to do about the band, to be done before the next tick.

        1. Better than orange, or so many ticks are left that only the dwell holds the band, or the last relief has not
           settled: nothing.
        2. Caches are shed, once until the band was better than orange.
        3. Of several rows the largest is preempted.
        4. In red, unless the grant ends first, the largest row fails that has not failed before.

        2 and 3 are left out while SHEDS_A_MINUTE of them are not a minute old; 4 comes when neither can be done.

        Args:
            rows: the size of each row that runs, in any unit.
        """
        if self._band < _BANDS.index("orange") or self._ticks_left >= ORANGE or self._settled < SETTLE_TICKS:
            return Relief(Action.NONE)
        red = self.band == "red" and not self._grant_ends_first
        while self._reliefs and now - self._reliefs[0] >= 60.0:
            self._reliefs.popleft()
        if len(self._reliefs) < SHEDS_A_MINUTE:
            if not self._shed:
                self._shed = True
                self.sheds += 1
                return self._do(Action.SHED, None, now)
            if len(rows) > 1:
                self.preemptions += 1
                return self._do(Action.PREEMPT, _largest(rows), now)
        left = {row_id: size for row_id, size in rows.items() if row_id not in self._failed}
        return self._fail(_largest(left), now) if red and left else Relief(Action.NONE)

    def memory_error(self, rows: Mapping[int, int], now: float) -> Relief:
        """The device had no memory for a tick of these rows, all of whose caches are lost.

        The largest is to wait until there is room, or fails where that has been tried; the others begin again with what they
        have said. There must be one at least.
        """
        self._enter(len(_LIMITS), now)
        suspect = _largest(rows)
        if suspect in self._suspects:
            return self._fail(suspect, now)
        self._suspects.add(suspect)
        self.preemptions += 1
        return self._do(Action.PREEMPT, suspect, now)

    def forget(self, row_id: int) -> None:
        """The row has ended, and its id will not come again."""
        self._suspects.discard(row_id)
        self._failed.discard(row_id)

    def _enter(self, band: int, now: float) -> None:
        self._band, self._since = band, now
        if band < _BANDS.index("orange"):
            self._shed = False

    def _fail(self, row_id: int, now: float) -> Relief:
        self.failures += 1
        self._failed.add(row_id)
        return self._do(Action.FAIL, row_id, now)

    def _do(self, action: Action, row_id: int | None, now: float) -> Relief:
        self._settled = 0
        if action is not Action.FAIL:
            self._reliefs.append(now)
        return Relief(action, row_id)


class _Growth:
    """The rate at which memory grows. Rows that leave are no growth, and hide none."""

    def __init__(self) -> None:
        self._fast, self._slow = _Mean(_FAST), _Mean(_SLOW)
        self._tick_s = _Mean(_FAST)
        self._last: tuple[int, float] | None = None

    @property
    def bytes_tick(self) -> float:
        return min(self._fast.value, _MOST_RATE * self._slow.value)

    @property
    def bytes_s(self) -> float:
        return self.bytes_tick / self._tick_s.value if self._tick_s.value > 0 else 0.0

    def add(self, used_bytes: int, now: float) -> None:
        if self._last is not None:
            grown = max(0, used_bytes - self._last[0])
            self._fast.add(grown)
            self._slow.add(grown)
            self._tick_s.add(now - self._last[1])
        self._last = used_bytes, now


class _Mean:
    """Of what was added, the newest with this weight; the plain mean while there is little of it."""

    def __init__(self, weight: float) -> None:
        self.value = 0.0
        self._weight = weight
        self._count = 0

    def add(self, value: float) -> None:
        self._count += 1
        self.value += max(self._weight, 1 / self._count) * (value - self.value)


def _ticks_left(reading: Reading, bytes_tick: float) -> float:
    headroom = reading.headroom_bytes
    if headroom is None or (reading.demand_bytes is not None and reading.demand_bytes <= headroom):
        return math.inf
    if headroom < 0 or (headroom == 0 and not (reading.grant_ends_first and reading.step_bytes)):
        return 0.0
    if reading.step_bytes > headroom:
        return reading.step_ticks
    after_step = (headroom - reading.step_bytes) / bytes_tick if bytes_tick > 0 else math.inf
    return reading.step_ticks + after_step


def _largest(rows: Mapping[int, int]) -> int:
    """The youngest of the largest: the highest id."""
    return max(rows, key=lambda row_id: (rows[row_id], row_id))
