"""The admin routes over a residency that records: names, bodies, statuses, guards."""

from __future__ import annotations

from types import SimpleNamespace

import httpx
import pytest

from gateway.errors import Conflict
from gateway.registry.load import RegistryError
from gateway.settings import ApiKey
from tests.gateway.helpers_app import JSON, KEY, client_of, make_app
from tests.gateway.helpers_residency import FakeResidency, refusing

REGISTRY_IDS = "a, b, embedder, broken"


async def ask(residency: FakeResidency, method: str, path: str, **options: object) -> httpx.Response:
    async with client_of(make_app(residency)) as client:
        return await client.request(method, path, **options)  # type: ignore[arg-type]


async def test_verbs_reach_the_residency_under_the_models_id() -> None:
    residency = FakeResidency()
    async with client_of(make_app(residency)) as client:
        for verb in ("load", "pin", "unpin"):
            assert (await client.post(f"/admin/models/gpt-4o/{verb}")).status_code == 200
        answer = await client.post("/admin/models/b/unload", json={"mode": "abort", "deadline_s": 5})
        await client.post("/admin/models/b/unload")
        cancelled = await client.delete("/admin/leases/lease-7")
    assert residency.asked == [
        ("load", "a"), ("pin", "a"), ("unpin", "a"), ("unload", "b", "abort", "5"), ("unload", "b", "drain", "30"),
        ("cancel", "lease-7"),
    ]  # fmt: skip
    assert set(answer.json()) == {"model", "state", "generation", "waited_for"}
    assert cancelled.json() == {"id": "lease-7", "model": "lease-7", "cancelled": True}


@pytest.mark.parametrize("verb", ["load", "unload", "pin", "unpin"])
async def test_verb_on_an_unknown_model_is_404_that_lists_what_there_is(verb: str) -> None:
    residency = FakeResidency()
    answer = await ask(residency, "POST", f"/admin/models/org/nobody/{verb}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert REGISTRY_IDS in answer.json()["error"]["message"]
    assert residency.asked == []


@pytest.mark.parametrize(
    ("verb", "body", "status"),
    [("unload", b'{"mode": "x"}', 400), ("load", b'{"mode": "drain"}', 400), ("pin", b"[", 400)],
)
async def test_verb_with_a_wrong_body_does_nothing(verb: str, body: bytes, status: int) -> None:
    residency = FakeResidency()
    answer = await ask(residency, "POST", f"/admin/models/a/{verb}", content=body, headers=JSON)
    assert answer.status_code == status
    assert residency.asked == []


async def test_verb_body_needs_its_content_type() -> None:
    residency = FakeResidency()
    body = {"content": b'{"mode": "force"}', "headers": {"content-type": "text/plain"}}
    assert (await ask(residency, "POST", "/admin/models/a/unload", **body)).status_code == 415
    assert residency.asked == []


async def test_conflict_names_the_pin_and_is_not_to_be_retried() -> None:
    residency = refusing(Conflict("model 'a' is pinned by 'b'", code="model_pinned"))
    answer = await ask(residency, "POST", "/admin/models/a/unload")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "model_pinned")
    assert "'b'" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"


async def test_reload_of_an_invalid_file_is_400_with_the_key_path() -> None:
    residency = FakeResidency()
    residency.refusal = RegistryError("r.yaml: models[0].ttl_s: expected a number", key="models[0].ttl_s")
    answer = await ask(residency, "POST", "/admin/registry/reload")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "models[0].ttl_s"
    assert "r.yaml: models[0].ttl_s" in answer.json()["error"]["message"]


async def test_reload_says_what_it_did() -> None:
    answer = await ask(FakeResidency(), "POST", "/admin/registry/reload")
    assert set(answer.json()) == {"added", "removed", "reloaded", "updated", "needs_restart"}


async def test_models_by_id_alias_and_after_removal() -> None:
    residency = FakeResidency()
    rows = [SimpleNamespace(id=name, state="loaded") for name in ("a", "b", "gone/already")]
    residency.snapshot.models = rows
    async with client_of(make_app(residency)) as client:
        listed = (await client.get("/admin/models")).json()["models"]
        for name, index in (("a", 0), ("gpt-4o", 0), ("gone/already", 2)):
            one = (await client.get(f"/admin/models/{name}")).json()
            assert one == {**listed[index], "capacity": None, "scheduling": None}
        assert (await client.get("/admin/models/nobody")).status_code == 404
    assert [model["id"] for model in listed] == ["a", "b", "gone/already"]


async def test_plan_needs_a_model_of_the_registry() -> None:
    async with client_of(make_app()) as client:
        missing = await client.get("/admin/plan")
        unknown = await client.get("/admin/plan", params={"model": "nobody"})
        alias = await client.get("/admin/plan", params={"model": "gpt-4o"})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")
    assert unknown.status_code == 404
    assert (alias.json()["model"], alias.json()["action"]) == ("a", "load")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/admin/status", "GET, HEAD"),
        ("PUT", "/admin/models", "GET, HEAD"),
        ("POST", "/admin/models/a", "GET, HEAD"),
        ("DELETE", "/admin/models/org/a/load", "POST"),
        ("GET", "/admin/models/a/load", "POST"),
        ("GET", "/admin/models/org/a/unpin", "POST"),
        ("GET", "/admin/leases/x", "DELETE"),
        ("POST", "/admin/events", "GET, HEAD"),
        ("GET", "/admin/registry/reload", "POST"),
    ],
)
async def test_wrong_method_is_405_with_the_whole_allow(method: str, path: str, allow: str) -> None:
    answer = await ask(FakeResidency(), method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (405, allow)


async def test_events_head_has_no_body_and_ends() -> None:
    residency = FakeResidency()
    answer = await ask(residency, "HEAD", "/admin/events")
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert len(residency.events) == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/admin/models/a/unload"), ("DELETE", "/admin/leases/x"), ("POST", "/admin/registry/reload"),
     ("GET", "/admin/events"), ("GET", "/admin/plan?model=a")],
)  # fmt: skip
async def test_guards_hold_for_pages_of_other_sites_and_keys_without_the_scope(method: str, path: str) -> None:
    residency = FakeResidency()
    evil = {"origin": "https://evil.example", "content-type": "text/plain"}
    page = await ask(residency, method, path, headers=evil)
    assert (page.status_code, page.json()["error"]["code"]) == (403, "origin_not_allowed")
    keys = (ApiKey(KEY, frozenset({"infer"})),)
    async with client_of(make_app(residency, keys=keys)) as client:
        answer = await client.request(method, path, headers={"authorization": f"Bearer {KEY}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "insufficient_scope")
    assert residency.asked == []
