"""Frozen pictures of the residency core, with the fields of ``/admin/status``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.residency.budget import Borrower
from gateway.residency.callers import Waiter
from gateway.residency.house import House
from gateway.residency.queue import Entry
from gateway.residency.resident import ResidencyManager
from gateway.residency.shared_policy import caller_limit
from gateway.residency.states import State
from gateway.residency.values import ModelInfo

__all__ = [
    "BudgetStatistics",
    "LeaseStatistics",
    "ModelStatistics",
    "QueueStatistics",
    "Statistics",
    "WorkerStatistics",
    "shown_state",
    "take_statistics",
]

_WITH_WORKER = (State.LOADING, State.LOADED, State.DRAINING, State.UNLOADING)


@dataclass(frozen=True, slots=True)
class BudgetStatistics:
    """Bytes. ``total_bytes`` is the budget without the overhead; charged and available add up to it."""

    total_bytes: int
    charged_bytes: int
    available_bytes: int
    overhead_bytes: int
    unreleased_bytes: int
    borrowers: tuple[Borrower, ...]


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """One registry id, or a removed one whose bytes are not back. ``shares`` is the id that carries the bytes, if another."""

    id: str
    task: str
    state: str
    cause: str | None
    charged_bytes: int
    measured_bytes: int
    grant_bytes: int
    leases: int
    waiting: int
    pinned: bool
    generation: int
    loads: int
    evictions: int
    last_error: str | None
    idle_s: float | None
    shares: str | None
    progress: float | None  # LOADING only
    expires_s: float | None = (
        None  # LOADED and DRAINING: until it is unloaded if nobody asks for it again; None: it is not
    )
    key: str = ""  # of its resident; "" where that is forgotten, but for its bytes
    queue_limit: int | None = None  # callers that may wait; None of a removed id


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """One queue entry; ``eta_s`` is None where no load of it has been timed."""

    model: str
    position: int  # from 1
    waiting: int
    waited_s: float
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class LeaseStatistics:
    id: str
    model: str
    generation: int
    age_s: float
    client: str
    route: str
    admitted: bool


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """A worker that was asked for and has not been seen to exit."""

    pid: int | None
    model: str
    key: str
    generation: int
    measured_bytes: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """Everything at one moment."""

    at: float
    budget: BudgetStatistics
    models: tuple[ModelStatistics, ...]
    queue: tuple[QueueStatistics, ...]
    leases: tuple[LeaseStatistics, ...]
    workers: tuple[WorkerStatistics, ...]
    waiting: int  # callers without a lease, and leased ones whose request has not begun
    queue_limit: int
    shutting_down: bool
    counts: Mapping[str, int]  # events that were counted and dropped


def take_statistics(house: House) -> Statistics:
    """The picture at ``house.now``."""
    budget = house.budget
    return Statistics(
        at=house.now,
        budget=BudgetStatistics(
            total_bytes=budget.total_bytes,
            charged_bytes=budget.charged_bytes,
            available_bytes=budget.available_bytes,
            overhead_bytes=budget.overhead_bytes,
            unreleased_bytes=budget.unreleased_bytes(),
            borrowers=budget.borrowers,
        ),
        models=tuple(_models(house)),
        queue=tuple(_queue(house)),
        leases=tuple(
            LeaseStatistics(
                id=lease.id,
                model=lease.waiter.model,
                generation=lease.generation,
                age_s=house.now - lease.since,
                client=lease.waiter.client,
                route=lease.waiter.route,
                admitted=lease.admitted,
            )
            for lease in house.leases.values()
        ),
        workers=tuple(_workers(house)),
        waiting=house.callers_without_service,
        queue_limit=house.settings.global_queue_limit,
        shutting_down=house.shutting_down,
        counts=dict(house.counts),
    )


def _models(house: House) -> list[ModelStatistics]:
    """Each charge stands on exactly one row: the first id of its key, else the name it was charged under. Each lease too: its
    own id, also where its resident is one that a reload has left behind; a removed id's on the row of its bytes.
    """
    charges: Counter[str] = Counter()
    for borrower in house.budget.borrowers:
        holder = house.residents.get(borrower.key)
        charges[_carrier(holder) if holder is not None else borrower.name] += borrower.bytes
    leases: Counter[str] = Counter()
    for lease in house.leases.values():
        id = lease.waiter.model
        leases[id if id in house.models else _carrier(house.residents[lease.key])] += 1
    rows = []
    for id in house.models:
        rows.append(_row(house, id, _shown(house, id), charges.pop(id, 0), leases[id]))
    for id, charge in charges.items():  # removed, and not yet gone
        orphan = next((r for r in house.residents.values() if r.orphaned and r.name == id), None)
        rows.append(_row(house, id, orphan, charge, leases[id]))
    return rows


def _carrier(resident: ResidencyManager) -> str:
    """The id on whose row its bytes stand."""
    return resident.ids[0] if resident.ids else resident.name


def _shown(house: House, id: str) -> ResidencyManager:
    """The resident of an id; after a reload the old one, while that drains and the new one is not begun."""
    resident = house.resident_of(id)
    before = house.before(resident)
    return before[0] if before and resident.state is State.UNLOADED else resident


def _row(house: House, id: str, resident: ResidencyManager | None, charged: int, leases: int) -> ModelStatistics:
    if resident is None:  # forgotten, but for its bytes
        return ModelStatistics(id, "", "unloaded", None, charged, 0, 0, 0, 0, False, 0, 0, 0, None, None, None, None)
    info = house.models.get(id)
    error = (info.error if info is not None else None) or resident.last_error
    entry = house.queue.get(info.resident_key) if info is not None else None
    working = resident.state in _WITH_WORKER
    current = resident.current
    carrier = _carrier(resident)
    idle = resident.idle_since
    return ModelStatistics(
        id=id,
        task=(info or resident.infos[0]).task,
        state=shown_state(resident, info),
        cause=resident.cause.value if resident.cause else None,
        charged_bytes=charged,
        measured_bytes=current.baseline + current.measured.total if working and carrier == id else 0,
        grant_bytes=current.grant if working and carrier == id else 0,
        leases=leases,
        waiting=sum(waiter.model == id for waiter in (*resident.joiners.values(), *_waiters(entry))),
        pinned=info is not None and house.pins.get(id, info.policy.pin),
        generation=resident.generation,
        loads=resident.loads,
        evictions=resident.evictions,
        last_error=error.message if error else None,
        idle_s=None if idle is None else house.now - idle,
        shares=None if carrier == id else carrier,
        progress=current.progress if resident.state is State.LOADING else None,
        expires_s=_expires_s(house, resident),
        key=resident.key,
        queue_limit=None if info is None else caller_limit(info, resident.width),
    )


def _expires_s(house: House, resident: ResidencyManager) -> float | None:
    if resident.state not in (State.LOADED, State.DRAINING):
        return None
    deadline = resident.idle_deadline
    return resident.stay_s if deadline is None else max(0.0, deadline - house.now)


def shown_state(resident: ResidencyManager, info: ModelInfo | None) -> str:
    """Its state; an id whose files cannot be used has failed, though nobody tried to load them."""
    unusable = info is not None and info.error is not None and resident.state is State.UNLOADED
    return State.FAILED.value if unusable else resident.state.value


def _waiters(entry: Entry | None) -> list[Waiter]:
    return [] if entry is None else list(entry.waiters.values())


def _queue(house: House) -> list[QueueStatistics]:
    """In order. The estimate adds up the loads ahead, that under way included."""
    loading = house.loading()
    ahead: float | None = 0.0
    if loading is not None:
        elapsed = house.now - loading.current.began
        ahead = None if loading.load_s is None else max(0.0, loading.load_s - elapsed)
    rows = []
    for position, entry in enumerate(house.queue, start=1):
        resident = house.residents[entry.key]
        ahead = None if ahead is None or resident.load_s is None else ahead + resident.load_s
        since = min((waiter.since for waiter in entry.waiters.values()), default=house.now)
        name = next((waiter.model for waiter in entry.waiters.values()), resident.name)
        rows.append(QueueStatistics(name, position, len(entry.waiters), house.now - since, ahead))
    return rows


def _workers(house: House) -> list[WorkerStatistics]:
    rows = []
    for key, generation in sorted(house.workers):
        resident = house.residents.get(key)
        if resident is not None and resident.generation == generation:
            current = resident.current
            rows.append(
                WorkerStatistics(current.pid, resident.name, key, generation, current.baseline + current.measured.total)
            )
        else:
            rows.append(WorkerStatistics(None, "", key, generation, 0))
    return rows
