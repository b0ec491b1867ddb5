"""The invariants of the residency core, as assertions. Run after every step of a test, and at idle."""

from __future__ import annotations

from gateway.residency.callers import Waiter
from gateway.residency.fairness import revocable
from gateway.residency.house import House
from gateway.residency.resident import ResidencyManager
from gateway.residency.states import Cause, State
from gateway.residency.timers import Timer, TimerKind

__all__ = ["check_integrity"]

_WITH_WORKER = (State.LOADING, State.LOADED, State.DRAINING, State.UNLOADING)


def check_integrity(house: House) -> None:
    """AssertionError, naming what does not hold."""
    house.budget.check_integrity()
    for resident in house.residents.values():
        _check_resident(house, resident)
        _check_deadline(house, resident)
    loading = [resident.name for resident in house.residents.values() if resident.state is State.LOADING]
    assert len(loading) <= 1, f"one load slot, and {loading} load"
    _check_charges(house)
    _check_leases(house)
    for waiter in house.waiters.values():
        _check_waiter(house, waiter)
    _check_queue(house)
    _check_intents(house)


def _check_resident(house: House, resident: ResidencyManager) -> None:
    name, state = resident.name, resident.state
    charged = house.budget.of(resident.key, resident.generation)
    if state in _WITH_WORKER:
        assert charged is not None, f"{name} is {state.value} and not charged"
        expected = resident.current.charge
        ending = state is State.UNLOADING and resident.sent
        assert charged == expected or ending, f"{name} is charged {charged}, not {expected}"
    elif charged is not None:
        unreleased = {(b.key, b.generation) for b in house.budget.borrowers if b.unreleased}
        assert (resident.key, resident.generation) in unreleased, f"{name} is {state.value} and charged"
    if state in (State.LOADING, State.LOADED, State.DRAINING):
        assert (resident.key, resident.generation) in house.workers, f"{name} is {state.value} without a worker"
    assert resident.generation == house.generations.get(resident.key, 0), f"{name} has lost its generation"
    assert (resident.cause is None) == (state not in (State.DRAINING, State.UNLOADING)), f"{name}: {resident.cause}"
    going = state in (State.DRAINING, State.UNLOADING)
    assert resident.claim is None or going, f"{name} is {state.value} and freed for {resident.claim}"
    assert not resident.leases or state in (State.LOADED, State.DRAINING), f"{name} is leased and {state.value}"
    assert resident.leases or state is not State.DRAINING, f"{name} drains no lease"
    assert state is State.LOADING or not (resident.joiners or resident.admin_loads), f"{name}: joiners of no load"
    assert state in (State.LOADING, State.DRAINING, State.UNLOADING) or not resident.unloads, (
        f"{name}: unload of nothing"
    )
    assert resident.unadmitted == sum(not lease.admitted for lease in resident.leases.values()), f"{name}: unadmitted"
    assert resident.current.growth is None or resident.leases, f"{name} grows for no lease"
    assert not resident.orphaned or state in (State.DRAINING, State.UNLOADING), f"{name} has no id and is {state.value}"
    idle = state is State.LOADED and not resident.leases
    assert (resident.idle_since is not None) == idle, f"{name}: the idle clock"
    timer = house.timers.at(Timer(TimerKind.IDLE, resident.key))
    assert timer == resident.idle_deadline, f"{name}: idle timer {timer}, deadline {resident.idle_deadline}"


def _check_deadline(house: House, resident: ResidencyManager) -> None:
    """No transient state without its timeout."""

    def runs(kind: TimerKind, subject: str | int) -> bool:
        return house.timers.at(Timer(kind, subject)) is not None

    key, name, state = resident.key, resident.name, resident.state
    intents = [intent.rival for intent in house.intents.values() if key in intent.members]
    assert runs(TimerKind.LOAD, key) == (state is State.LOADING), f"{name}: load timeout"
    assert runs(TimerKind.ABANDON, key) == resident.abandoned, f"{name}: abandon grace"
    assert runs(TimerKind.UNLOAD, key) == (state is State.UNLOADING and resident.sent), f"{name}: unload timeout"
    if state is State.DRAINING:
        if resident.cause is Cause.FAIRNESS:
            assert any(runs(TimerKind.INTENT, rival) for rival in intents), f"{name} drains for nobody"
        elif resident.cause is Cause.ADMIN:
            assert any(runs(TimerKind.ADMIN_UNLOAD, admin) for admin in resident.unloads), f"{name}: admin deadline"
        else:
            assert runs(TimerKind.DRAIN, key), f"{name}: drain deadline"
    if state is State.UNLOADING and not resident.sent:
        assert any(runs(TimerKind.INTENT, rival) for rival in intents), f"{name} is held for nobody"


def _check_charges(house: House) -> None:
    for borrower in house.budget.borrowers:
        assert borrower.generation <= house.generations[borrower.key], f"{borrower.name}: a generation not yet begun"
        resident = house.residents.get(borrower.key)
        current = resident is not None and resident.generation == borrower.generation
        live = current and resident is not None and resident.state in _WITH_WORKER
        assert live or borrower.unreleased, f"{borrower.name} generation {borrower.generation} is charged for nothing"


def _check_leases(house: House) -> None:
    assert house.unadmitted == sum(not lease.admitted for lease in house.leases.values()), "unadmitted leases"
    assert sum(len(resident.leases) for resident in house.residents.values()) == len(house.leases), "stray leases"
    for lease in house.leases.values():
        resident = house.residents[lease.key]
        assert resident.leases.get(lease.id) is lease, f"{lease.id} is not its resident's"
        assert lease.generation == resident.generation, f"{lease.id} is of an old generation"
        assert lease.waiter.lease == lease.id, f"{lease.id} is not its waiter's"
        assert house.waiters.get(lease.waiter.id) is lease.waiter, f"{lease.id} has no waiter"


def _check_waiter(house: House, waiter: Waiter) -> None:
    entry = house.queue.get(waiter.key)
    resident = house.residents.get(waiter.key)
    queued = entry is not None and entry.waiters.get(waiter.id) is waiter
    joined = resident is not None and resident.joiners.get(waiter.id) is waiter
    granted = waiter.lease is not None and waiter.lease in house.leases
    assert queued + joined + granted == 1, f"waiter {waiter.id}: queued {queued}, joined {joined}, granted {granted}"
    timer = house.timers.at(Timer(TimerKind.WAITER, waiter.id))
    assert (timer is not None) == queued, f"waiter {waiter.id}: queue timeout {timer}"
    if not granted:
        info = house.models.get(waiter.model)
        assert info is not None and info.resident_key == waiter.key, f"waiter {waiter.id} waits for an old key"


def _check_queue(house: House) -> None:
    assert not house.shutting_down or not len(house.queue), "a queue in a shutdown"
    for entry in house.queue:
        resident = house.residents[entry.key]
        assert entry.wanted, f"{resident.name}: an entry for nobody"
        assert not resident.in_backoff, f"{resident.name}: queued in its backoff"
        served = resident.state is State.LOADED and house.open
        assert not served, f"{resident.name} is loaded and has a queue"
        joined = resident.state is State.LOADING and not resident.unloads
        assert not joined, f"{resident.name} is loading and has a queue"


def _check_intents(house: House) -> None:
    for rival, intent in house.intents.items():
        entry = house.queue.get(rival)
        assert entry is not None and entry.waiters, f"a drain for {rival}, who has gone"
        assert house.timers.at(Timer(TimerKind.INTENT, rival)) is not None, f"a drain for {rival} without a deadline"
        for key in intent.members:
            assert revocable(house.residents[key]), f"{key} is drained for {rival}, and is not"
    for resident in house.residents.values():
        member = any(resident.key in intent.members for intent in house.intents.values())
        assert member or not revocable(resident), f"{resident.name} is held for nobody"
