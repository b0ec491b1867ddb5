"""The states of a resident, and the table of what each event does in each of them.

The table is data: :func:`check` holds every transition the code makes against it, tests walk its cells, and
:func:`render_table` writes it for ``docs/residency.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

__all__ = ["TABLE", "Cause", "Cell", "IllegalTransition", "State", "Trigger", "check", "render_table"]


class State(Enum):
    """Where a resident is. The comment says when each holds."""

    UNLOADED = "unloaded"  # no worker holds it
    LOADING = "loading"  # its bytes are charged and a worker builds it; every caller awaits the same load
    LOADED = "loaded"  # leases may be granted
    DRAINING = "draining"  # no new leases, new callers queue, existing leases finish; never without a lease
    UNLOADING = "unloading"  # no leases; state is persisted and the worker torn down, then UNLOADED or FAILED
    FAILED = "failed"  # the last load failed or the worker died; the backoff runs


class Cause(Enum):
    """Why a resident is DRAINING; of an UNLOADING one, why it left."""

    FAIRNESS = "fairness"  # the head of the queue has waited long enough; revocable
    ADMIN = "admin"  # an operator unloads it
    RELOAD = "reload"  # its load keys changed in the registry
    REMOVED = "removed"  # its last id left the registry
    SHUTDOWN = "shutdown"  # the gateway ends
    EVICTED = "evicted"  # another needs its bytes
    IDLE = "idle"  # nobody used it for its TTL
    ABANDONED = "abandoned"  # nobody waits for the load any more
    LOAD_FAILED = "load_failed"  # the load failed or made no progress


class Trigger(Enum):
    """The rows of the table."""

    REQUEST = "request"
    ADMIN_LOAD = "admin load, preload"
    LOAD_DONE = "load done"
    LOAD_FAILED = "load failed or timed out"
    WORKER_EXITED = "worker exited"
    RELEASE_OBSERVED = "release observed"
    WAITER_CANCELS = "a waiter cancels, others wait"
    LAST_WAITER_CANCELS = "last waiter cancels"
    LAST_LEASE_RELEASED = "last lease released"
    IDLE_TIMEOUT = "idle timeout"
    EVICT = "evict decided"
    FAIRNESS = "fairness drain decided"
    INTENT_CANCELLED = "its intent cancelled"
    UNLOAD_DRAIN = "unload drain"
    UNLOAD_ABORT = "unload abort"
    UNLOAD_FORCE = "unload force"
    PIN = "pin"
    UNPIN = "unpin"
    DRAIN_DEADLINE = "drain deadline"
    UNLOAD_TIMED_OUT = "unload timed out"
    LOAD_KEYS_CHANGED = "load keys changed"
    LAST_ID_REMOVED = "last id removed"
    SHUTDOWN = "shutdown"


class IllegalTransition(AssertionError):
    """The code took a step that the table does not have: a defect."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What one event does in one state: in words, and the states it may lead to (its own, where it may stay)."""

    text: str
    to: frozenset[State]

    @property
    def ignored(self) -> bool:
        """The event is counted and nothing changes."""
        return self.text == "–"


_U, _LG, _LD, _D, _UG, _F = State
_ORDER = (_U, _LG, _LD, _D, _UG, _F)

_Row = tuple[tuple[str, tuple[State, ...]], ...]
_NOTHING: tuple[str, tuple[State, ...]] = ("–", ())
_FLAG: tuple[str, tuple[State, ...]] = ("flag", ())

# Each row: what happens in UNLOADED, LOADING, LOADED, DRAINING, UNLOADING, FAILED, and where it may lead beside staying.
_ROWS: dict[Trigger, _Row] = {
    Trigger.REQUEST: (
        ("plan: refuse, queue, or LOADING", (_LG,)),
        ("join; with an unload intent: queue", ()),
        ("lease", ()),
        ("queue behind the intent (removed 404, shutdown 503)", ()),
        ("queue", ()),
        ("in backoff 503 with the rest and the last error, else plan", (_LG,)),
    ),
    Trigger.ADMIN_LOAD: (
        ("plan", (_LG,)),
        ("join", ()),
        ("200", ()),
        ("queue", ()),
        ("queue", ()),
        ("clears the backoff, plan", (_LG,)),
    ),
    Trigger.LOAD_DONE: (
        _NOTHING,
        ("LOADED; every live waiter granted in the same step", (_LD,)),
        _NOTHING,
        _NOTHING,
        _NOTHING,
        _NOTHING,
    ),
    Trigger.LOAD_FAILED: (
        _NOTHING,
        ("UNLOADING(FAILED), one error to all waiters", (_UG,)),
        _NOTHING,
        _NOTHING,
        _NOTHING,
        _NOTHING,
    ),
    Trigger.WORKER_EXITED: (
        _NOTHING,
        ("as load failed, already released", (_UG,)),
        ("error events; FAILED", (_F,)),
        ("error events; fairness: FAILED; else UNLOADED", (_F, _U)),
        ("released", (_U, _F)),
        _NOTHING,
    ),
    Trigger.RELEASE_OBSERVED: (
        _NOTHING,
        _NOTHING,
        _NOTHING,
        _NOTHING,
        ("credit, go to the target, queued re-planned (FAILED: they get its 503)", (_U, _F)),
        _NOTHING,
    ),
    Trigger.WAITER_CANCELS: (
        ("dequeue", ()),
        ("nothing", ()),
        _NOTHING,
        ("dequeue", ()),
        ("dequeue", ()),
        _NOTHING,
    ),
    Trigger.LAST_WAITER_CANCELS: (
        ("dequeue, cancel the fairness intents raised for it, re-plan", ()),
        ("abandon rule", (_UG,)),
        _NOTHING,
        ("dequeue", ()),
        ("dequeue", ()),
        _NOTHING,
    ),
    Trigger.LAST_LEASE_RELEASED: (
        _NOTHING,
        _NOTHING,
        ("idle clock starts, re-plan", ()),
        ("UNLOADING", (_UG,)),
        _NOTHING,
        _NOTHING,
    ),
    Trigger.IDLE_TIMEOUT: (
        _NOTHING,
        _NOTHING,
        ("UNLOADING if unpinned", (_UG,)),
        _NOTHING,
        _NOTHING,
        _NOTHING,
    ),
    Trigger.EVICT: (
        _NOTHING,
        ("only an abandoned, admin or preload load: UNLOADING", (_UG,)),
        ("UNLOADING, only with 0 leases", (_UG,)),
        _NOTHING,
        _NOTHING,
        _NOTHING,
    ),
    Trigger.FAIRNESS: (
        _NOTHING,
        _NOTHING,
        ("DRAINING(fairness); with 0 leases UNLOADING, not yet sent", (_D, _UG)),
        _NOTHING,
        _NOTHING,
        _NOTHING,
    ),
    Trigger.INTENT_CANCELLED: (
        _NOTHING,
        _NOTHING,
        _NOTHING,
        ("fairness: LOADED, queued granted", (_LD,)),
        ("not yet sent: LOADED", (_LD,)),
        _NOTHING,
    ),
    Trigger.UNLOAD_DRAIN: (
        ("200", ()),
        ("serve current waiters, then unload; with none UNLOADING; pinned 409", (_UG,)),
        ("DRAINING(admin); with 0 leases UNLOADING; pinned 409", (_D, _UG)),
        ("joins; cause becomes admin (shutdown stays)", ()),
        ("joins", ()),
        ("UNLOADED", (_U,)),
    ),
    Trigger.UNLOAD_ABORT: (
        ("200, queued 503 `model_unloaded`", ()),
        ("waiters 503, UNLOADING; pinned 409", (_UG,)),
        ("cancel leases, queued 503, DRAINING(admin); with 0 leases UNLOADING; pinned 409", (_D, _UG)),
        ("upgrades", ()),
        ("joins", ()),
        ("UNLOADED, queued 503", (_U,)),
    ),
    Trigger.UNLOAD_FORCE: (
        ("as abort", ()),
        ("as abort, ignores the pin", (_UG,)),
        ("as abort, ignores the pin, kill at the deadline", (_D, _UG)),
        ("upgrades, kill", (_UG,)),
        ("kill", ()),
        ("UNLOADED, queued 503", (_U,)),
    ),
    Trigger.PIN: (
        _FLAG,
        _FLAG,
        _FLAG,
        ("flag; fairness: LOADED", (_LD,)),
        ("flag; not yet sent: LOADED", (_LD,)),
        _FLAG,
    ),
    Trigger.UNPIN: (_FLAG, _FLAG, _FLAG, _FLAG, _FLAG, _FLAG),
    Trigger.DRAIN_DEADLINE: (
        _NOTHING,
        ("an unload that waits for it: 409 `model_busy`", ()),
        _NOTHING,
        (
            "fairness: LOADED; admin drain: LOADED and 409 `model_busy` with the leases; reload, removed: keep draining, an "
            "event each `drain_timeout_s`; abort, force, shutdown: kill",
            (_LD, _UG),
        ),
        _NOTHING,
        _NOTHING,
    ),
    Trigger.UNLOAD_TIMED_OUT: (
        _NOTHING,
        _NOTHING,
        _NOTHING,
        _NOTHING,
        ("kill the group; bytes not seen free become `unreleased`; go to the target", (_U, _F)),
        _NOTHING,
    ),
    Trigger.LOAD_KEYS_CHANGED: (
        ("re-resolve queued", ()),
        ("waiters move to the new key; abandoned unless another id has this key", (_UG,)),
        ("DRAINING(reload) unless another id has this key; with 0 leases UNLOADING", (_D, _UG)),
        ("cause becomes reload", ()),
        ("queued move to the new key", ()),
        ("UNLOADED", (_U,)),
    ),
    Trigger.LAST_ID_REMOVED: (
        ("queued 404, then forget", ()),
        ("waiters 404, abandoned", (_UG,)),
        ("DRAINING(removed); with 0 leases UNLOADING", (_D, _UG)),
        ("cause becomes removed", ()),
        ("queued 404, then forget", ()),
        ("forget", (_U,)),
    ),
    Trigger.SHUTDOWN: (
        ("queued 503", ()),
        ("aborted", (_UG,)),
        ("DRAINING(shutdown); with 0 leases UNLOADING", (_D, _UG)),
        ("cause becomes shutdown", ()),
        ("bounded by the grace", ()),
        ("forget", (_U,)),
    ),
}

TABLE: Mapping[tuple[State, Trigger], Cell] = MappingProxyType(
    {
        (state, trigger): Cell(text, frozenset((state, *to)))
        for trigger, row in _ROWS.items()
        for state, (text, to) in zip(_ORDER, row, strict=True)
    }
)


def check(state: State, trigger: Trigger, to: State) -> None:
    """IllegalTransition unless the table lets ``trigger`` lead from ``state`` to ``to``."""
    if to not in TABLE[state, trigger].to:
        raise IllegalTransition(f"{trigger.value} must not lead from {state.name} to {to.name}")


def render_table() -> str:
    """The table as Markdown: one row an event, one column a state."""
    lines = [
        "| event | " + " | ".join(state.name for state in _ORDER) + " |",
        "|---" * (len(_ORDER) + 1) + "|",
    ]
    for trigger in Trigger:
        cells = (TABLE[state, trigger].text for state in _ORDER)
        lines.append(f"| {trigger.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
