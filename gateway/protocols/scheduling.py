"""What ``GET /admin/models/{id}`` tells beyond its row: ``capacity``, and what the worker reported last as ``scheduling``.

Both are null where there is nothing to tell; a context without a bound is null too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from engines.scheduling.histogram import BOUNDS_S, Histogram
from engines.wire import SchedulingReport
from gateway.residency.scheduling import Capacity, ResidentScheduling

__all__ = ["CAPACITY", "HISTOGRAMS", "SCHEDULING", "scheduling_objects"]

CAPACITY = ("estimate", "context", "grant_bytes", "width", "queue_limit", "rows")
HISTOGRAMS = ("inter_token", "queue_wait", "ttft")
SCHEDULING = SchedulingReport.__struct_fields__
_UNBOUNDED = 2**31 - 1  # tokens: what a simulated model says that was given no context


def scheduling_objects(told: ResidentScheduling | None) -> dict[str, Any]:
    """``capacity`` and ``scheduling`` of one model."""
    return {
        "capacity": None if told is None else _capacity(told.capacity),
        "scheduling": None if told is None or told.report is None else _report(told.report),
    }


def _capacity(capacity: Capacity) -> dict[str, Any]:
    return {
        "estimate": capacity.estimate,
        "context": _tokens(capacity.context),
        "grant_bytes": capacity.grant_bytes,
        "width": capacity.width,
        "queue_limit": capacity.queue_limit,
        "rows": [{"rows": depth.rows, "tokens": _tokens(depth.tokens)} for depth in capacity.depths],
    }


def _tokens(count: int) -> int | None:
    return None if count >= _UNBOUNDED else count


def _report(report: SchedulingReport) -> dict[str, Any]:
    """Its fields under their own names; buckets count as Prometheus' do, those before included."""
    told = {name: getattr(report, name) for name in SCHEDULING if name not in HISTOGRAMS}
    told["by_priority"] = msgspec.to_builtins(report.by_priority)
    return told | {name: _histogram(getattr(report, name)) for name in HISTOGRAMS}


def _histogram(histogram: Histogram) -> dict[str, Any]:
    buckets = [{"le_s": bound, "count": count} for bound, count in zip(BOUNDS_S, histogram.counts, strict=True)]
    return {"count": histogram.count, "sum_s": histogram.sum_s, "buckets": buckets}
