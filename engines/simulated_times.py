"""What the simulated engine keeps for its scheduling reports: times as a real engine measures them, and its speed."""

from __future__ import annotations

from engines.scheduling.histogram import Recorder
from engines.simulated_row import SimulatedRow

__all__ = ["SimulatedTimes"]


class SimulatedTimes:
    """Since the engine was built."""

    def __init__(self) -> None:
        self.inter_token = Recorder()
        self.queue_wait = Recorder()
        self.ttft = Recorder()
        self._tokens = 0
        self._read: tuple[int, float] | None = None

    def said(self, row: SimulatedRow, now: float) -> None:
        """The row's next token comes now."""
        self._tokens += 1
        if row.said_at is None:
            self.ttft.add(now - row.submitted_at)
        else:
            self.inter_token.add(now - row.said_at)
        row.said_at = now

    def tokens_s(self, now: float) -> float:
        """Tokens a second since this was last asked."""
        before, self._read = self._read, (self._tokens, now)
        if before is None or now <= before[1]:
            return 0.0
        return (self._tokens - before[0]) / (now - before[1])
