"""``GET /admin/status``: a snapshot of the residency under its public field names; what is not known is null."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["status_object"]

_BUDGET = ("total_bytes", "charged_bytes", "available_bytes", "overhead_bytes")
_MODEL = (
    "id",
    "task",
    "state",
    "cause",
    "charged_bytes",
    "measured_bytes",
    "leases",
    "waiting",
    "pinned",
    "generation",
    "loads",
    "evictions",
    "last_error",
    "idle_s",
    "shares",
)
_QUEUE = ("model", "position", "waited_s", "eta_s")
_LEASE = ("id", "model", "generation", "age_s", "client", "route")
_WORKER = ("pid", "model", "rss_bytes", "device_bytes")


def status_object(statistics: Any) -> dict[str, Any]:
    """The whole answer."""
    return {
        "budget": _fields(getattr(statistics, "budget", None), _BUDGET),
        "models": _all(getattr(statistics, "models", ()), _MODEL),
        "queue": _all(getattr(statistics, "queue", ()), _QUEUE),
        "leases": _all(getattr(statistics, "leases", ()), _LEASE),
        "workers": _all(getattr(statistics, "workers", ()), _WORKER),
    }


def _fields(value: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(value, name, None) for name in names}


def _all(values: Iterable[Any], names: Iterable[str]) -> list[dict[str, Any]]:
    return [_fields(value, names) for value in values]
