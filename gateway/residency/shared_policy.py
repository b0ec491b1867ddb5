"""The residency policy of a resident that several registry ids share."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engines.scheduling.capacity import queue_cap
from engines.wire import Priority
from gateway.residency.values import ModelInfo

__all__ = ["SharedPolicy"]

_PRIORITIES = ("batch", "normal", "interactive")  # who goes first, as the registry names them
_WIDTH_UNKNOWN_LIMIT = 64
_KEPT_FROM_BATCH = 4  # one place in so many


@dataclass(frozen=True, slots=True)
class SharedPolicy:
    """Each wait is the longest that one of the ids asks for, the priority the highest."""

    infos: tuple[ModelInfo, ...]
    load_timeout_s: float
    drain_timeout_s: float
    abandon_grace_s: float
    priority: int  # 0 batch, 1 normal, 2 interactive

    @classmethod
    def of(cls, infos: Sequence[ModelInfo]) -> SharedPolicy:
        """At least one id."""
        policies = [info.policy for info in infos]
        return cls(
            infos=tuple(infos),
            load_timeout_s=max(policy.load_timeout_s for policy in policies),
            drain_timeout_s=max(policy.drain_timeout_s for policy in policies),
            abandon_grace_s=max(policy.abandon_grace_s for policy in policies),
            priority=max(_PRIORITIES.index(policy.priority) for policy in policies),
        )

    def ttl_s(self, used: Collection[str]) -> float:
        """The longest of the ids used; of all, when none was."""
        ttls = [info.policy.ttl_s for info in self.infos if info.id in used]
        return max(ttls or [info.policy.ttl_s for info in self.infos])


def caller_limit(info: ModelInfo, width: int | None, priority: Priority = "normal") -> int:
    """Callers without a lease plus leased but unadmitted ones that a resident may have at a time, for one more of this priority: a
    quarter of the places is not for ``batch``, so that a flood of it leaves room for the others.

    ``width``: rows its last load decoded together; None before the first.
    """
    if info.policy.queue_limit is not None:
        limit = max(1, info.policy.queue_limit)
    else:
        limit = _WIDTH_UNKNOWN_LIMIT if width is None else queue_cap(width)
    return limit - limit // _KEPT_FROM_BATCH if priority == "batch" else limit
