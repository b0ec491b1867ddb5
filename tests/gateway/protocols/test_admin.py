"""The admin API's objects, field by field."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.errors import GatewayError, ModelTooLarge
from gateway.protocols import admin
from gateway.residency.event_feed import Notice, Transition
from gateway.residency.explain import Explanation
from gateway.residency.values import AdminAnswer


def test_status_has_exactly_the_fields_that_are_promised() -> None:
    anything = SimpleNamespace(secret="no")
    status = admin.status_object(
        SimpleNamespace(budget=anything, models=[anything], queue=[anything], leases=[anything], workers=[anything])
    )
    assert list(status) == ["budget", "models", "queue", "leases", "workers"]
    assert set(status["budget"]) == {"total_bytes", "charged_bytes", "available_bytes", "overhead_bytes"}
    assert list(status["models"][0]) == [
        "id", "task", "state", "cause", "charged_bytes", "measured_bytes", "leases", "waiting", "pinned", "generation",
        "loads", "evictions", "last_error", "idle_s", "shares",
    ]  # fmt: skip
    assert list(status["queue"][0]) == ["model", "position", "waited_s", "eta_s"]
    assert list(status["leases"][0]) == ["id", "model", "generation", "age_s", "client", "route"]
    assert list(status["workers"][0]) == ["pid", "model", "rss_bytes", "device_bytes"]


def test_model_object_is_one_of_the_models() -> None:
    statistics = SimpleNamespace(models=[SimpleNamespace(id="a", state="loaded"), SimpleNamespace(id="b/c")])
    found = admin.model_object(statistics, "b/c")
    assert found == admin.model_objects(statistics)[1]
    assert admin.model_object(statistics, "b") is None


def test_event_is_a_transition_with_its_six_fields() -> None:
    event = Transition(12.5, "org/a", "loaded", "draining", "fairness", 7)
    assert admin.event_bytes(event) == (
        b'event: transition\ndata: {"at":12.5,"model":"org/a","from":"loaded","to":"draining","cause":"fairness",'
        b'"charged_bytes":7}\n\n'
    )


def test_event_of_a_notice_is_a_warning_on_one_line() -> None:
    text = admin.event_bytes(Notice(1.0, "no space\nleft"))
    assert text == b'event: warning\ndata: {"at":1.0,"message":"no space\\nleft"}\n\n'


def test_plan_carries_its_error_as_an_error_body_does() -> None:
    plan = Explanation("a", "unloaded", "refuse", False, error=ModelTooLarge("too large", param="model"))
    body = admin.plan_object(plan)
    assert body["error"] == {
        "message": "too large", "type": "server_error", "param": "model", "code": "model_too_large",
    }  # fmt: skip
    assert set(body) == {
        "model", "state", "action", "fits", "evicts", "drains", "rule", "charged_bytes", "grant_bytes", "waits_for",
        "error",
    }  # fmt: skip


def test_answers_to_verbs() -> None:
    answer = AdminAnswer("a", "unloaded", 3, ("lease-1", "lease-2"))
    assert admin.unloaded_object(answer) == {
        "model": "a", "state": "unloaded", "generation": 3, "waited_for": ["lease-1", "lease-2"],
    }  # fmt: skip
    assert admin.pinned_object(answer, pinned=True)["pinned"] is True


@pytest.mark.parametrize(
    ("body", "mode", "deadline_s"),
    [
        (b"", "drain", 30),
        (b"{}", "drain", 30),
        (b'{"mode": "force"}', "force", 30),
        (b'{"deadline_s": 0}', "drain", 0),
        (b'{"mode": "abort", "deadline_s": 2.5}', "abort", 2.5),
        (b'{"mode": null, "deadline_s": null}', "drain", 30),
    ],
)
def test_unload_body(body: bytes, mode: str, deadline_s: float) -> None:
    assert admin.parse_unload(body) == admin.UnloadRequest(mode, deadline_s)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        (b'{"mode": "gently"}', "mode", "drain, abort, force"),
        (b'{"mode": 1}', "mode", "is 1"),
        (b'{"mode": ["drain"]}', "mode", "an array of 1"),
        (b'{"deadline_s": -1}', "deadline_s", "from 0 to 86400"),
        (b'{"deadline_s": "soon"}', "deadline_s", "'soon'"),
        (b'{"dead_line": 3}', "dead_line", "did you mean 'deadline_s'?"),
        (b"[]", None, "must be a JSON object"),
        (b"{", None, "not valid JSON"),
    ],
)
def test_unload_body_refused(body: bytes, param: Any, said: str) -> None:
    with pytest.raises(GatewayError) as caught:
        admin.parse_unload(body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert said in caught.value.message


def test_verbs_without_options_refuse_them() -> None:
    admin.parse_nothing(b"")
    admin.parse_nothing(b"{}")
    with pytest.raises(GatewayError, match="unknown parameter 'mode'"):
        admin.parse_nothing(b'{"mode": "drain"}')
