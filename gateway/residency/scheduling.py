"""What is told of a model's scheduling: how many rows of which length it holds, and what its worker reported last.

A worker that answers says both itself. Before a load the capacity is worked out from the file's header, as an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.footprint import Footprint
from engines.scheduling.admission import KvCost
from engines.scheduling.capacity import CAPACITY_ROWS, Depth, depths
from engines.wire import CapacityRow, Ready, SchedulingReport

__all__ = ["Capacity", "ResidentScheduling", "announced", "estimated"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """For so many rows at a time the deepest context that fits the KV grant.

    Attributes:
        estimate: it is not loaded, and these are the header's numbers and the grant that it gets where there is room.
        context: tokens that a row may hold at most.
        grant_bytes: of KV.
        width: rows decoded together at most; None where nothing has measured it.
        queue_limit: callers that may wait at a time.
        depths: by rising rows.
    """

    estimate: bool
    context: int
    grant_bytes: int
    width: int | None
    queue_limit: int
    depths: tuple[Depth, ...]


@dataclass(frozen=True, slots=True)
class ResidentScheduling:
    """One id; ``report`` is None before the first one, and of what is not loaded."""

    model: str
    capacity: Capacity
    report: SchedulingReport | None = None


def announced(
    ready: Ready, rows: tuple[CapacityRow, ...], width: int, *, grant_bytes: int, queue_limit: int
) -> Capacity:
    """Of a worker that answers. Without ``rows`` nothing bounds a row but the context."""
    told = tuple(Depth(row.rows, row.tokens) for row in rows)
    return Capacity(
        estimate=False,
        context=ready.context,
        grant_bytes=grant_bytes,
        width=width,
        queue_limit=queue_limit,
        depths=told or tuple(Depth(count, ready.context) for count in CAPACITY_ROWS),
    )


def estimated(footprint: Footprint, *, grant_bytes: int, width: int | None, queue_limit: int) -> Capacity:
    """Of a model that is not loaded. ``width``: of its last load."""
    cost = KvCost(
        bytes_per_token=footprint.kv_bytes_per_token,
        window_bytes_per_token=footprint.kv_window_bytes_per_token,
        window_tokens=footprint.kv_window_tokens,
        state_bytes=footprint.state_bytes,
    )
    return Capacity(
        estimate=True,
        context=footprint.context,
        grant_bytes=grant_bytes,
        width=width,
        queue_limit=queue_limit,
        depths=depths(cost, grant_bytes, footprint.context),
    )
