"""What the shell tells the core. Rules: ``messages.py``."""

from __future__ import annotations

from dataclasses import dataclass

from engines.wire import Priority
from gateway.errors import GatewayError
from gateway.residency.values import AdminId, LeaseId, ModelInfo, UnloadMode, WaiterId

__all__ = [
    "AdminLoad",
    "AdminUnload",
    "CancelWaiter",
    "Event",
    "GrowRequest",
    "KeepAlive",
    "LeaseAdmitted",
    "LeaseReleased",
    "LoadFailed",
    "LoadProgress",
    "MemoryReport",
    "OverheadMeasured",
    "Pin",
    "RegistryChanged",
    "ReleaseObserved",
    "Request",
    "Shutdown",
    "Tick",
    "Unpin",
    "WidthChanged",
    "WorkerExited",
    "WorkerReady",
    "WorkerStarted",
]

# --- events: callers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """A caller wants a lease on registry id ``model`` and ``acquire_nowait`` gave none.

    Answered by ``GrantLease`` or ``FailWaiter``, in this call or later.
    """

    waiter: WaiterId
    model: str
    client: str = ""
    route: str = ""
    priority: Priority = "normal"


@dataclass(frozen=True, slots=True)
class CancelWaiter:
    """The caller is gone. Works at any time: queued, it is dequeued; granted, its lease is given back; requeued, dequeued.

    After it no effect names the waiter again (one already in the list being run may: the shell drops it).
    """

    waiter: WaiterId


@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """The lease has ended: its terminal event is buffered, or it was never used. A second one is counted and ignored."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class LeaseAdmitted:
    """The worker reported ``Admitted`` for the lease's request: prefill began, so it is never replayed."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """A caller's wish for how long the model stays after its last lease (Ollama's ``keep_alive``).

    The later of it and the TTL rules; 0 unloads at the last release unless pinned; negative means for ever.
    """

    model: str
    seconds: float


# --- events: workers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """The process is up (``Hello``). For statistics only."""

    key: str
    generation: int
    pid: int


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The worker builds on; extends the load timeout. ``fraction`` is 0 to 1."""

    key: str
    generation: int
    fraction: float


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The model answers (wire ``Ready``). ``static_bytes`` is the growth over ``baseline_bytes``.

    Simulated workers report a baseline of 0. ``kv_bytes_per_token`` is of the layers that grow for ever, as the footprint's.
    """

    key: str
    generation: int
    static_bytes: int
    baseline_bytes: int = 0
    kv_bytes_per_token: int = 0
    context: int | None = None
    width: int = 1


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The worker said it cannot build the model, or it could not be spawned. ``WorkerExited`` follows."""

    key: str
    generation: int
    error: GatewayError


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The process group is gone. ``held_bytes`` is what the release probe still reports (0: all free).

    With bytes held the core answers ``ObserveRelease``. ``detail`` says how it ended ("signal 9", "exit 1", …).
    """

    key: str
    generation: int
    detail: str = "exited"
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseObserved:
    """After ``WorkerExited`` with bytes held: the probe now reports ``held_bytes`` (0: all free, and the last such event)."""

    key: str
    generation: int
    held_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The wire's ``MemoryReport`` of this worker; ``static`` is without its baseline."""

    key: str
    generation: int
    static: int
    kv: int
    prompt_cache: int = 0
    mlx_cache: int = 0
    peak: int = 0


@dataclass(frozen=True, slots=True)
class GrowRequest:
    """A request needs ``bytes`` more than the grant.

    Answered by ``SetGrant`` (at once or when bytes free), by ``DenyGrowth`` when no grant could ever hold it, or by
    nothing: it stays deferred. A worker may ask again; only its latest ask is remembered, and one for 0 bytes takes it back.
    """

    key: str
    generation: int
    bytes: int
    request: int


@dataclass(frozen=True, slots=True)
class WidthChanged:
    """With another grant another number of rows may decode together: the queue's automatic cap follows."""

    key: str
    generation: int
    width: int


@dataclass(frozen=True, slots=True)
class OverheadMeasured:
    """Bytes taken by what is no resident (warm spares); and what an empty worker of a real model takes, once known.

    ``yielding_bytes`` come on top as far as they fit beside what is charged: no model goes for them.
    """

    overhead_bytes: int
    baseline_bytes: int | None = None
    yielding_bytes: int = 0


# --- events: operators ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AdminLoad:
    """Load it now. ``AnswerAdmin`` comes when it is loaded or has failed. A caller that leaves does not cancel it."""

    admin: AdminId
    model: str


@dataclass(frozen=True, slots=True)
class AdminUnload:
    """Unload it. ``AnswerAdmin`` comes when its bytes are released, or as a 409. A caller that leaves does not cancel it."""

    admin: AdminId
    model: str
    mode: UnloadMode = "drain"
    deadline_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Pin:
    """Never evict, idle-unload or drain it for fairness. Loads nothing. Answered in the same step."""

    admin: AdminId
    model: str


@dataclass(frozen=True, slots=True)
class Unpin:
    """Takes a pin away, the registry's too (until its key changes there). Answered in the same step."""

    admin: AdminId
    model: str


@dataclass(frozen=True, slots=True)
class RegistryChanged:
    """The whole registry, valid, in its order. Also the first event after start, which begins the preloads."""

    models: tuple[ModelInfo, ...]


@dataclass(frozen=True, slots=True)
class Shutdown:
    """No new work; leases run until 3 s before the grace ends. ``ShutdownComplete`` comes when no worker is left.

    A second one with a smaller grace shortens it.
    """

    grace_s: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: due when the last ``SetTimer`` says, and each second."""


Event = (
    Request
    | CancelWaiter
    | LeaseReleased
    | LeaseAdmitted
    | KeepAlive
    | WorkerStarted
    | LoadProgress
    | WorkerReady
    | LoadFailed
    | WorkerExited
    | ReleaseObserved
    | MemoryReport
    | GrowRequest
    | WidthChanged
    | OverheadMeasured
    | AdminLoad
    | AdminUnload
    | Pin
    | Unpin
    | RegistryChanged
    | Shutdown
    | Tick
)
