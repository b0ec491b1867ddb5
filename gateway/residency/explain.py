"""``/admin/plan``: what a request for a model would lead to, and why. It decides as the planner does, and does nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.errors import GatewayError
from gateway.residency.eviction import POLICIES
from gateway.residency.house import House
from gateway.residency.plan import Blocked, Evict, Refuse, Start, choose_drain, decide, fits_beside
from gateway.residency.queue import Claim
from gateway.residency.resident import ResidencyManager
from gateway.residency.room import Room
from gateway.residency.states import State
from gateway.residency.statistics import shown_state

__all__ = ["Explanation", "explain"]

Action = Literal["lease", "join", "queue", "load", "evict", "drain", "refuse"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """``fits``: it is loaded or could be without anybody's lease ending. Bytes are what the load would be charged.

    ``evicts`` and ``drains`` name ids; ``rule`` says how they were chosen. ``waits_for`` is empty where nothing is waited for.
    """

    model: str
    state: str
    action: Action
    fits: bool
    evicts: tuple[str, ...] = ()
    drains: tuple[str, ...] = ()
    rule: str | None = None
    charged_bytes: int = 0
    grant_bytes: int = 0
    waits_for: tuple[str, ...] = ()
    error: GatewayError | None = None  # with which it would be refused


def explain(house: House, room: Room, model: str) -> Explanation:
    """ModelNotFound when there is no such id."""
    info = house.models.get(model)
    if info is None:
        raise house.not_found(model)
    resident = house.residents[info.resident_key]
    state = shown_state(resident, info)
    if info.error is not None:
        return Explanation(model, state, "refuse", False, error=info.error)
    charge, grant = resident.charge, resident.current.grant
    if resident.state is State.LOADED:
        return Explanation(model, state, "lease", True, charged_bytes=charge, grant_bytes=grant)
    if resident.state is State.LOADING:
        waits = (f"the load of {model}",)
        return Explanation(model, state, "join", True, charged_bytes=charge, grant_bytes=grant, waits_for=waits)
    if resident.state in (State.DRAINING, State.UNLOADING):
        leases = f" and its {len(resident.leases)} leases" if resident.leases else ""
        waits = (f"the unloading of {model} ({resident.cause.value if resident.cause else ''}){leases}",)
        return Explanation(model, state, "queue", False, waits_for=waits)
    if resident.in_backoff:
        rest = resident.backoff.rest(house.now)
        return Explanation(
            model, state, "refuse", False, waits_for=(f"its backoff of {rest:.0f} s",), error=resident.last_error
        )
    return _plan(house, room, resident, model)


def _plan(house: House, room: Room, resident: ResidencyManager, model: str) -> Explanation:
    """As though it stood in the queue now: behind whoever waits, else at the head."""
    state, loading = resident.state.value, house.loading()
    slot: tuple[str, ...] = (f"the load of {loading.name}",) if loading is not None else ()
    first = house.queue.head is None or house.queue.head == resident.key
    view = room.view(resident.key, head=first)
    decision = decide(view, house.settings.policy)
    if isinstance(decision, Refuse):
        return Explanation(model, state, "refuse", False, error=decision.error)
    if isinstance(decision, Start) or (not first and fits_beside(view) is not None):
        grant = decision.grant if isinstance(decision, Start) else fits_beside(view) or 0
        charge = view.sizes.static + grant
        return Explanation(model, state, "load", True, charged_bytes=charge, grant_bytes=grant, waits_for=slot)
    charge = decision.needed
    grant = charge - view.sizes.static
    if not first:
        ahead = sum(1 for entry in house.queue if entry.key != resident.key)
        waits: tuple[str, ...] = (f"{ahead} models ahead in the queue",)
        return Explanation(model, state, "queue", False, charged_bytes=charge, grant_bytes=grant, waits_for=waits)
    if isinstance(decision, Evict):
        names = _names(house, decision.keys)
        waits = (*slot, *(f"the unloading of {name}" for name in names))
        return Explanation(model, state, "evict", True, names, (), _rule(house), charge, grant, waits)
    if isinstance(decision, Blocked):
        return _drain(house, room, resident, model, charge - view.available - view.pending, charge, grant)
    waits = tuple(f"the unloading of {r.name}" for r in house.residents.values() if r.state is State.UNLOADING)
    return Explanation(model, state, "queue", True, charged_bytes=charge, grant_bytes=grant, waits_for=(*slot, *waits))


def _drain(
    house: House, room: Room, resident: ResidencyManager, model: str, missing: int, charge: int, grant: int
) -> Explanation:
    state = resident.state.value
    idle = room.idle(Claim("load", resident.key))
    drain = choose_drain(missing, idle, room.drainable(), house.settings.policy)
    if drain is None:
        waits: tuple[str, ...] = ("bytes that nobody may be made to give",)
        return Explanation(model, state, "queue", False, charged_bytes=charge, grant_bytes=grant, waits_for=waits)
    wait = house.models[model].policy.fairness_wait_s
    drains, evicts = _names(house, drain.drain), _names(house, drain.hold)
    rule = f"after {wait:.0f} s: fewest leases, then least recently used; {_rule(house)}"
    waits = tuple(f"the leases of {name}" for name in drains)
    return Explanation(model, state, "drain", False, evicts, drains, rule, charge, grant, waits)


def _names(house: House, keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(house.residents[key].name for key in keys)


def _rule(house: House) -> str:
    """The policy, in the first sentence of its docstring."""
    policy = house.settings.policy
    return f"{policy}: {(POLICIES[policy].__doc__ or '').strip().splitlines()[0]}"
