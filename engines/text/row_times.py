"""What the worker keeps of its own rows' times."""

from __future__ import annotations

from engines.scheduling.histogram import Recorder
from engines.text.live_row import LiveRow

__all__ = ["RowTimes"]


class RowTimes:
    """Since the engine was built."""

    def __init__(self) -> None:
        self.inter_token = Recorder()
        self.queue_wait = Recorder()
        self.ttft = Recorder()

    def told(self, live: LiveRow, now: float) -> None:
        """A token of this row is reported now. The pause of a row that was preempted is a time between tokens too."""
        if live.said_at is None:
            self.ttft.add(now - live.row.arrived_at)
        else:
            self.inter_token.add(now - live.said_at)
