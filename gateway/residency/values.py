"""Values that events and effects of the residency core carry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engines.wire import ModelSpec
from gateway.errors import GatewayError

__all__ = [
    "AdminAnswer",
    "AdminId",
    "LearnedValue",
    "LeaseId",
    "ManagerSettings",
    "ModelInfo",
    "Policy",
    "UnloadMode",
    "WaiterId",
]

WaiterId = int
"""A caller of ``acquire``; given by the shell, never used twice."""
AdminId = int
"""A caller of an admin verb; given by the shell, never used twice."""
LeaseId = str
"""Given by the core: ``lease-1``, ``lease-2``, …"""
UnloadMode = Literal["drain", "abort", "force"]


@dataclass(frozen=True, slots=True)
class Policy:
    """The residency keys of one registry entry, resolved. Names and defaults are the registry's."""

    ttl_s: float | None = 900.0  # None: never unloaded for being idle
    preload: bool = False
    pin: bool = False
    priority: Literal["low", "normal", "high"] = "normal"
    queue_limit: int | None = None  # None: auto
    queue_timeout_s: float = 120.0
    load_timeout_s: float = 300.0
    abandon_grace_s: float = 10.0
    fairness_wait_s: float = 10.0
    drain_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One registry id as the core sees it. Ids with the same ``resident_key`` share one resident.

    ``static_bytes`` and ``kv_bytes_per_token`` are the estimates from the header. ``error`` is answered to whoever uses the
    id (not acquired, unsupported, file missing). ``simulated`` entries take no real memory, so the device is not asked.
    """

    id: str
    resident_key: str
    content_key: str
    spec: ModelSpec
    static_bytes: int
    kv_bytes_per_token: int = 0
    context: int | None = None  # tokens; None: unlimited
    kv_grant_bytes: int | None = None  # the entry's own grant; None: computed
    simulated: bool = False
    policy: Policy = field(default_factory=Policy)
    error: GatewayError | None = None

    @property
    def task(self) -> str:
        return self.spec.task


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """What the manager is told once. ``budget_bytes`` is resolved and clamped already."""

    budget_bytes: int
    policy: str = "lru"
    unload_timeout_s: float = 20.0
    global_queue_limit: int = 1024


@dataclass(frozen=True, slots=True)
class LearnedValue:
    """What loads of one content key have shown.

    ``lower_*`` are the measurements of the loads in a row that came out below the value (newest last): three that agree
    lower it.
    """

    static_bytes: int
    kv_bytes_per_token: int
    lower_static: tuple[int, ...] = ()
    lower_kv: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AdminAnswer:
    """A 200 to an admin verb. ``waited_for`` are the leases an unload waited for."""

    model: str
    state: str
    generation: int
    waited_for: tuple[LeaseId, ...] = ()
