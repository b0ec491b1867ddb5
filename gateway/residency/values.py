"""Values that events and effects of the residency core carry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from engines.footprint import Footprint
from engines.wire import ModelSpec, Task
from gateway.errors import GatewayError
from gateway.registry.catalog import ResolvedModel
from gateway.registry.schema import Policy

__all__ = [
    "AdminAnswer",
    "AdminId",
    "LearnedValue",
    "LeaseId",
    "ManagerSettings",
    "ModelInfo",
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
class ModelInfo:
    """One registry id as the core sees it. Ids with the same ``resident_key`` share one resident.

    ``footprint`` is the estimate from the header. ``error`` is answered to whoever uses the id (not acquired, unsupported,
    file missing). Simulated models take no real memory, so the device is not asked before they load.
    """

    id: str
    resident_key: str
    content_key: str
    spec: ModelSpec
    footprint: Footprint
    kv_grant_bytes: int | None = None  # the entry's own grant; None: computed
    policy: Policy = field(default_factory=Policy)
    error: GatewayError | None = None

    @classmethod
    def of(cls, model: ResolvedModel) -> ModelInfo:
        """What the registry resolved, as far as residency is concerned."""
        return cls(
            id=model.id,
            resident_key=model.resident_key,
            content_key=model.content_key,
            spec=model.spec,
            footprint=model.footprint,
            kv_grant_bytes=model.kv_grant_bytes,
            policy=model.policy,
            error=model.error,
        )

    @property
    def task(self) -> Task:
        return self.spec.task

    @property
    def simulated(self) -> bool:
        return self.spec.simulate is not None


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
