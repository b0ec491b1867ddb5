"""A frozen picture of the whole residency: what the core counts, and what workers and their processes say."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.residency.manager import ModelManager
from gateway.residency.scheduling import ResidentScheduling, announced
from gateway.residency.statistics import BudgetStatistics, LeaseStatistics, ModelStatistics, QueueStatistics
from gateway.residency.worker_fleet import ProcessStatistics, WorkerFleet

__all__ = ["ResidencyStatistics", "scheduling_of", "take_snapshot"]

_SERVING = ("loaded", "draining")
_WITH_ROWS = ("text", "vision")  # tasks whose models decode rows


@dataclass(frozen=True)
class ResidencyStatistics:
    """The manager's snapshot, the processes as the system sees them, and what is told of scheduling: once a resident, of those
    that are loaded.
    """

    budget: BudgetStatistics
    models: tuple[ModelStatistics, ...]
    queue: tuple[QueueStatistics, ...]
    leases: tuple[LeaseStatistics, ...]
    workers: tuple[ProcessStatistics, ...]
    scheduling: tuple[ResidentScheduling, ...]


def take_snapshot(manager: ModelManager, fleet: WorkerFleet, now: float) -> ResidencyStatistics:
    """The picture at ``now``."""
    statistics = manager.statistics(now)
    told = (_told(fleet, row, row) for row in statistics.models if row.shares is None)
    return ResidencyStatistics(
        budget=statistics.budget,
        models=statistics.models,
        queue=statistics.queue,
        leases=statistics.leases,
        workers=fleet.statistics(),
        scheduling=tuple(scheduling for scheduling in told if scheduling is not None),
    )


def scheduling_of(model: str, manager: ModelManager, fleet: WorkerFleet, now: float) -> ResidentScheduling | None:
    """Of one id: what its worker says, else what the header promises. None where it decodes no rows or cannot be used."""
    rows = {row.id: row for row in manager.statistics(now).models}
    row = rows.get(model)
    if row is None or row.task not in _WITH_ROWS:
        return None
    told = _told(fleet, row, rows.get(row.shares or model, row))
    if told is not None:
        return told
    capacity = manager.estimate(model)
    return None if capacity is None else ResidentScheduling(model, capacity)


def _told(fleet: WorkerFleet, row: ModelStatistics, carrier: ModelStatistics) -> ResidentScheduling | None:
    """What the worker says of itself, of one that serves. ``carrier`` is the row that its bytes stand on."""
    host = fleet.host(row.key, row.generation)
    if host is None or host.ready is None or row.state not in _SERVING or row.task not in _WITH_ROWS:
        return None
    limit = 0 if row.queue_limit is None else row.queue_limit
    capacity = announced(host.ready, host.capacity, host.width, grant_bytes=carrier.grant_bytes, queue_limit=limit)
    return ResidentScheduling(row.id, capacity, host.scheduling)
