"""The admin API's objects: snapshots under their public field names, the bodies of verbs, and events.

What is not known is null. Bytes are integers, times seconds, states in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from gateway.errors import GatewayError, InvalidRequest
from gateway.protocols.envelopes import openai_error
from gateway.protocols.json_body import decode_object
from gateway.protocols.options import OptionTables, read_number, shown, sort_options
from gateway.residency.event_feed import FeedEvent, Notice
from gateway.residency.explain import Explanation
from gateway.residency.reload import Reload
from gateway.residency.values import AdminAnswer, UnloadMode

__all__ = [
    "UNLOAD_OPTIONS",
    "UnloadRequest",
    "event_bytes",
    "lease_objects",
    "loaded_object",
    "model_object",
    "model_objects",
    "parse_nothing",
    "parse_unload",
    "pinned_object",
    "plan_object",
    "queue_objects",
    "reload_object",
    "status_object",
    "unloaded_object",
]

BUDGET = ("total_bytes", "charged_bytes", "available_bytes", "overhead_bytes")
MODEL = (
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
QUEUE = ("model", "position", "waited_s", "eta_s")
LEASE = ("id", "model", "generation", "age_s", "client", "route")
WORKER = ("pid", "model", "rss_bytes", "device_bytes")

# --- snapshots --------------------------------------------------------------------------------------------------------


def status_object(statistics: Any) -> dict[str, Any]:
    """``GET /admin/status``"""
    return {
        "budget": _fields(getattr(statistics, "budget", None), BUDGET),
        "models": model_objects(statistics),
        "queue": queue_objects(statistics),
        "leases": lease_objects(statistics),
        "workers": _all(getattr(statistics, "workers", ()), WORKER),
    }


def model_objects(statistics: Any) -> list[dict[str, Any]]:
    """One object an id: ``models`` of the status."""
    return _all(getattr(statistics, "models", ()), MODEL)


def model_object(statistics: Any, model: str) -> dict[str, Any] | None:
    """That of one id; None when there is none."""
    return next((entry for entry in model_objects(statistics) if entry["id"] == model), None)


def queue_objects(statistics: Any) -> list[dict[str, Any]]:
    """``queue`` of the status."""
    return _all(getattr(statistics, "queue", ()), QUEUE)


def lease_objects(statistics: Any) -> list[dict[str, Any]]:
    """``leases`` of the status."""
    return _all(getattr(statistics, "leases", ()), LEASE)


def _fields(value: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(value, name, None) for name in names}


def _all(values: Iterable[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    return [_fields(value, names) for value in values]


def plan_object(plan: Explanation) -> dict[str, Any]:
    """``GET /admin/plan``: the explanation's fields; ``error`` as an error body has it."""
    body = {name: getattr(plan, name) for name in plan.__dataclass_fields__}
    return {**body, "error": _error(plan.error)}


def _error(error: GatewayError | None) -> dict[str, Any] | None:
    return None if error is None else openai_error(error)["error"]


# --- verbs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class UnloadRequest:
    """The body of ``unload``; ``deadline_s`` seconds from now."""

    mode: UnloadMode = "drain"
    deadline_s: float = 30.0


_MODES: dict[str, UnloadMode] = {"drain": "drain", "abort": "abort", "force": "force"}
_LONGEST_DEADLINE_S = 86_400
UNLOAD_OPTIONS = OptionTables(honoured=frozenset({"mode", "deadline_s"}), hints=frozenset(), refused={})
_NO_OPTIONS = OptionTables(honoured=frozenset(), hints=frozenset(), refused={})


def parse_unload(body: bytes) -> UnloadRequest:
    """The body, which may be empty. InvalidRequest names the field, its value and what is allowed."""
    options, _ = sort_options(decode_object(body) if body else {}, UNLOAD_OPTIONS)
    mode = options.get("mode", "drain")
    if not isinstance(mode, str) or mode not in _MODES:
        raise InvalidRequest(f"mode is {shown(mode)}; it must be one of {', '.join(_MODES)}", param="mode")
    deadline_s = read_number(options, "deadline_s", 0, _LONGEST_DEADLINE_S)
    return UnloadRequest(_MODES[mode], UnloadRequest.deadline_s if deadline_s is None else deadline_s)


def parse_nothing(body: bytes) -> None:
    """The body of a verb without options: empty, or an empty object."""
    sort_options(decode_object(body) if body else {}, _NO_OPTIONS)


def loaded_object(answer: AdminAnswer) -> dict[str, Any]:
    """The answer to ``load``."""
    return {"model": answer.model, "state": answer.state, "generation": answer.generation}


def unloaded_object(answer: AdminAnswer) -> dict[str, Any]:
    """The answer to ``unload``; ``waited_for`` are the ids of the leases it waited for."""
    return {**loaded_object(answer), "waited_for": list(answer.waited_for)}


def pinned_object(answer: AdminAnswer, *, pinned: bool) -> dict[str, Any]:
    """The answer to ``pin`` and ``unpin``."""
    return {**loaded_object(answer), "pinned": pinned}


def reload_object(reload: Reload) -> dict[str, Any]:
    """The answer to ``reload``."""
    return {name: list(ids) for name, ids in asdict(reload).items()}


# --- events -----------------------------------------------------------------------------------------------------------


def event_bytes(event: FeedEvent) -> bytes:
    """One server-sent event: ``transition``, or ``warning`` for what went wrong and stops nobody."""
    if isinstance(event, Notice):
        return _event("warning", {"at": event.at, "message": event.message})
    return _event(
        "transition",
        {
            "at": event.at,
            "model": event.model,
            "from": event.from_state,
            "to": event.to_state,
            "cause": event.cause,
            "charged_bytes": event.charged_bytes,
        },
    )


def _event(name: str, data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(data))
