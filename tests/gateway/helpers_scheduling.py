"""A report of a worker with a number of its own in each field."""

from __future__ import annotations

from typing import Any

from engines.scheduling.capacity import Depth
from engines.scheduling.histogram import Recorder
from engines.wire import PriorityCounts, SchedulingReport
from gateway.residency.scheduling import Capacity, ResidentScheduling

__all__ = ["report", "resident"]


def report(**fields: Any) -> SchedulingReport:
    times = {}
    for name, seconds in (("inter_token", 0.02), ("queue_wait", 3.0), ("ttft", 700.0)):
        recorder = Recorder()
        recorder.add(seconds)
        recorder.add(0.0005)
        times[name] = recorder.read()
    values: dict[str, Any] = {
        "width": 4,
        "decoding": 3,
        "prefilling": 1,
        "waiting": 6,
        "deferred": 2,
        "by_priority": PriorityCounts(interactive=1, normal=2, batch=3),
        "ratio": 4.5,
        "chunk_tokens": 512,
        "chunk_cost_s": 0.7,
        "step_cost_s": 0.05,
        "band": "yellow",
        "headroom_bytes": 10_000,
        "growth_bytes_s": 2_000.0,
        "prefill_tokens_s": 730.0,
        "decode_tokens_s": 60.0,
        "frontier_tokens": 4_000,
        "bytes_per_row_token": 23_040.5,
        "preemptions": 7,
        "sheds": 8,
        "cohorts": 2,
        "failures_by_memory": 9,
        **times,
    }
    return SchedulingReport(**(values | fields))


def resident(model: str = "a", told: SchedulingReport | None = None, **fields: Any) -> ResidentScheduling:
    values: dict[str, Any] = {
        "estimate": False,
        "context": 8192,
        "grant_bytes": 1 << 30,
        "width": 4,
        "queue_limit": 16,
        "depths": (Depth(1, 8192), Depth(2, 4096), Depth(32, 0)),
    }
    return ResidentScheduling(model, Capacity(**(values | fields)), told)
