"""What the core asks of the shell. Rules: ``messages.py``."""

from __future__ import annotations

from dataclasses import dataclass

from engines.wire import ModelSpec
from gateway.errors import GatewayError
from gateway.residency.values import AdminAnswer, AdminId, LearnedValue, LeaseId, WaiterId

__all__ = [
    "AnswerAdmin",
    "CancelLease",
    "DenyGrowth",
    "Effect",
    "EmitTransition",
    "EndLease",
    "FailWaiter",
    "GrantLease",
    "KillWorker",
    "ObserveRelease",
    "PersistLearned",
    "RequeueLease",
    "SendClose",
    "SetGrant",
    "SetTimer",
    "Shed",
    "ShutdownComplete",
    "StartWorker",
]

# --- effects: callers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GrantLease:
    """The waiter has a lease on this worker. The shell sets its future; if the caller is gone it sends ``CancelWaiter``."""

    waiter: WaiterId
    lease: LeaseId
    model: str
    key: str
    generation: int


@dataclass(frozen=True, slots=True)
class FailWaiter:
    """The waiter gets this error, and no lease."""

    waiter: WaiterId
    error: GatewayError


@dataclass(frozen=True, slots=True)
class RequeueLease:
    """The lease's worker is gone before it admitted the request: the lease is over, its caller waits again.

    The shell parks the caller, and submits the same request on the ``GrantLease`` that follows for ``waiter``; or the
    caller gets the error of a ``FailWaiter``. To let go it sends ``CancelWaiter``, not ``LeaseReleased``.
    """

    lease: LeaseId
    waiter: WaiterId


@dataclass(frozen=True, slots=True)
class EndLease:
    """The lease is over, since its worker is gone or about to be killed: its caller gets this error as its last event.

    The core has forgotten the lease; the shell need not release it (a release is counted and ignored).
    """

    lease: LeaseId
    error: GatewayError


@dataclass(frozen=True, slots=True)
class CancelLease:
    """Ask the worker to cancel the lease's request; ``error`` is what its caller is told. ``LeaseReleased`` then follows."""

    lease: LeaseId
    error: GatewayError


@dataclass(frozen=True, slots=True)
class AnswerAdmin:
    """The answer to an admin verb: a 200, or the error."""

    admin: AdminId
    answer: AdminAnswer | GatewayError


# --- effects: workers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker (or take the spare) and send it ``LoadModel``. ``charged_bytes`` are reserved for it already."""

    key: str
    generation: int
    model: str
    spec: ModelSpec
    grant_bytes: int
    charged_bytes: int


@dataclass(frozen=True, slots=True)
class SendClose:
    """Send ``Close``: persist, stop, exit. ``WorkerExited`` follows; the core kills it if it takes too long."""

    key: str
    generation: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill the process group now (also one still being spawned). ``WorkerExited`` follows."""

    key: str
    generation: int


@dataclass(frozen=True, slots=True)
class ObserveRelease:
    """The worker is gone but its bytes are not: probe until they are, and send ``ReleaseObserved`` as they fall."""

    key: str
    generation: int


@dataclass(frozen=True, slots=True)
class SetGrant:
    """Send ``SetGrant``: KV and caches may hold this many bytes from now on."""

    key: str
    generation: int
    grant_bytes: int


@dataclass(frozen=True, slots=True)
class DenyGrowth:
    """Send ``DenyGrowth``: the grant can never be larger than ``most_bytes``. The worker says what becomes of the request."""

    key: str
    generation: int
    request: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Shed:
    """Send ``Shed``: give back at least this many bytes of caches."""

    key: str
    generation: int
    bytes: int


# --- effects: the rest ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Send ``Tick`` at ``at`` (None: nothing is due). Replaces the one before."""

    at: float | None


@dataclass(frozen=True, slots=True)
class EmitTransition:
    """For ``/admin/events`` and the log. ``charged_bytes`` is the resident's charge after the step, unreleased included.

    ``from_state`` equals ``to_state`` where a state goes on and somebody should know (a drain that lasts, bytes unreleased,
    an overrun). States are in lower case.
    """

    at: float
    model: str
    from_state: str
    to_state: str
    cause: str
    charged_bytes: int


@dataclass(frozen=True, slots=True)
class PersistLearned:
    """Write this to the state directory. A failed write costs only the memory of it."""

    content_key: str
    value: LearnedValue


@dataclass(frozen=True, slots=True)
class ShutdownComplete:
    """No worker is left, or the grace is over."""


Effect = (
    GrantLease
    | FailWaiter
    | RequeueLease
    | EndLease
    | CancelLease
    | AnswerAdmin
    | StartWorker
    | SendClose
    | KillWorker
    | ObserveRelease
    | SetGrant
    | DenyGrowth
    | Shed
    | SetTimer
    | EmitTransition
    | PersistLearned
    | ShutdownComplete
)
