"""The app as a whole: every route behind the guards, errors in their envelopes, nothing unexpected let through."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.app import ROUTES
from gateway.middleware.auth import OPEN_PATHS
from gateway.settings import ApiKey
from tests.gateway.helpers_app import JSON, KEY, chat_body, client_of, make_app
from tests.gateway.helpers_residency import FakeResidency, delta, finished

KEYS = (ApiKey(KEY, frozenset({"infer"})), ApiKey("sk-admin", frozenset({"admin"})))


def every_route() -> list[tuple[str, str]]:
    """(method, concrete path) of every route."""
    found = []
    for route in ROUTES:
        assert isinstance(route, Route)
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        found += [(method, path) for method in sorted(route.methods or ())]
    return found


def test_routes_one_route_a_path() -> None:
    paths = [route.path for route in ROUTES if isinstance(route, Route)]
    assert len(paths) == len(set(paths)) == len(ROUTES)


@pytest.mark.parametrize(("method", "path"), every_route())
async def test_routes_without_key_are_refused(method: str, path: str) -> None:
    async with client_of(make_app(keys=KEYS)) as client:
        answer = await client.request(method, path)
    assert answer.status_code == (200 if path in OPEN_PATHS else 401)


@pytest.mark.parametrize(("method", "path"), every_route())
async def test_routes_need_their_scope(method: str, path: str) -> None:
    is_admin = path.startswith("/admin")
    other = KEY if is_admin else "sk-admin"
    both = path in OPEN_PATHS or path in ("/", "/metrics", "/v1/metrics", "/openapi.json")
    async with client_of(make_app(keys=KEYS)) as client:
        answer = await client.request(method, path, headers={"x-api-key": other})
    assert (answer.status_code == 403) != both


@pytest.mark.parametrize(("method", "path"), sorted({*every_route()} - {("GET", "/admin/events")}))  # it never ends
async def test_routes_are_built_or_answer_501(method: str, path: str) -> None:
    async with client_of(make_app()) as client:
        answer = await client.request(method, path, headers=JSON)
    assert answer.status_code in (200, 400, 404, 415, 501)
    if answer.status_code == 501:
        assert answer.headers["x-should-retry"] == "false"
        assert method == "HEAD" or "not built yet" in answer.text or "innkeeper reload" in answer.text


async def test_unknown_path_is_404_in_envelope() -> None:
    async with client_of(make_app()) as client:
        openai = await client.get("/v1/nothing")
        ollama = await client.get("/api/nothing")
        anthropic = await client.get("/v1/messages/nothing")
    assert openai.status_code == ollama.status_code == anthropic.status_code == 404
    assert openai.json()["error"]["code"] == "not_found"
    assert "/api/nothing" in ollama.json()["error"]
    assert anthropic.json()["error"]["type"] == "not_found_error"
    assert anthropic.json()["request_id"] == anthropic.headers["x-request-id"]


async def test_trailing_slash_is_not_redirected() -> None:
    async with client_of(make_app()) as client:
        assert (await client.get("/v1/models/")).status_code == 404


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/api/chat/completions", "/v1/chat/completions"),
        ("/api/v1/embeddings", "/v1/embeddings"),
        ("/v1/api/chat", "/api/chat"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/models/a", "/v1/models/a"),
    ],
)
async def test_unknown_path_says_which_is_meant(path: str, meant: str) -> None:
    async with client_of(make_app()) as client:
        answer = await client.post(path, json={})
    assert answer.status_code == 404
    said = answer.json()["error"]
    assert (
        said if isinstance(said, str) else said["message"]
    ) == f"there is no route {path!r}; did you mean {meant!r}?"


async def test_unknown_path_near_none_says_where_they_are_listed() -> None:
    async with client_of(make_app()) as client:
        answer = await client.get("/v1/files")
    assert answer.json()["error"]["message"] == "there is no route '/v1/files'; GET /openapi.json has those there are"


async def test_models_names_parameters_it_ignores() -> None:
    async with client_of(make_app()) as client:
        answer = await client.get("/v1/models?order=asc&limit=1")
    assert ([model["id"] for model in answer.json()["data"]], answer.json()["has_more"]) == (["a"], True)
    assert answer.headers["x-innkeeper-ignored"] == "order"


async def test_wrong_method_carries_whole_allow() -> None:
    async with client_of(make_app()) as client:
        chat = await client.get("/v1/chat/completions")
        response = await client.patch("/v1/responses/x")
    assert (chat.status_code, chat.headers["allow"]) == (405, "POST")
    assert chat.json()["error"]["code"] == "method_not_allowed"
    assert (response.status_code, response.headers["allow"]) == (405, "DELETE, GET, HEAD")


async def test_unexpected_error_is_500_with_request_id_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    residency = FakeResidency()
    residency.healthy = lambda now: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    async with client_of(make_app(residency)) as client:
        answer = await client.get("/v1/models/x", headers={"x-request-id": "mine"})
        assert answer.status_code == 404
        answer = await client.get("/health", headers={"x-request-id": "mine"})
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] == "mine"
    assert "mine" in answer.text
    traced = [record for record in caplog.records if record.exc_info]
    assert [record.levelname for record in traced] == ["ERROR"]
    assert "division by zero" in str(traced[0].exc_info)


async def test_unexpected_error_in_own_route_is_500_in_envelope() -> None:
    async def broken(_request: Request) -> Response:
        raise KeyError("secret")

    app = make_app()
    app.router.routes.append(Route("/v1/broken", broken))
    async with client_of(app) as client:
        answer = await client.get("/v1/broken")
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text


async def test_request_id_is_taken_from_client_only_when_plain() -> None:
    async with client_of(make_app()) as client:
        plain = await client.get("/health", headers={"x-request-id": "abc-1"})
        odd = await client.get("/health", headers={"x-request-id": "a b; c"})
    assert plain.headers["x-request-id"] == "abc-1"
    assert odd.headers["x-request-id"].startswith("req_")


async def test_root_is_ollamas_words() -> None:
    async with client_of(make_app()) as client:
        answer, head = await client.get("/"), await client.head("/")
    assert answer.text == "Ollama is running"
    assert (head.status_code, head.text) == (200, "")


async def test_health_and_ready_say_why_not() -> None:
    residency = FakeResidency()
    async with client_of(make_app(residency)) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.head("/ready")).status_code == 200
        residency.unready = "the queue is full"
        assert (await client.get("/ready")).json() == {"status": "not ready", "reason": "the queue is full"}
        residency.is_healthy = False
        assert (await client.get("/health")).status_code == 503
        residency.is_shutting_down = True
        assert (await client.get("/ready")).json()["reason"] == "shutting down"


async def test_models_lists_registry() -> None:
    async with client_of(make_app()) as client:
        listed = (await client.get("/v1/models")).json()
        one = (await client.get("/v1/models/gpt-4o")).json()
        missing = await client.get("/v1/models/org/none")
    assert [model["id"] for model in listed["data"]] == ["a", "b", "embedder", "broken"]
    assert listed["data"][3]["error"]["code"] == "model_load_failed"
    assert one["id"] == "a"
    assert one["aliases"] == ["gpt-4o"]
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"
    assert "a, b, embedder" in missing.json()["error"]["message"]


async def test_admin_status_has_all_fields_unknown_ones_null() -> None:
    residency = FakeResidency()
    residency.snapshot = SimpleNamespace(
        budget=SimpleNamespace(total_bytes=10, charged_bytes=4, available_bytes=6, overhead_bytes=1),
        models=(SimpleNamespace(id="a", state="loaded", leases=1),),
        queue=(),
        leases=(SimpleNamespace(id="lease-1", model="a", generation=1, age_s=0.5, client="key-1", route="/x"),),
        workers=(SimpleNamespace(pid=7, model="a"),),
    )
    async with client_of(make_app(residency)) as client:
        status = (await client.get("/admin/status")).json()
    assert status["budget"] == {"total_bytes": 10, "charged_bytes": 4, "available_bytes": 6, "overhead_bytes": 1}
    assert status["models"][0]["state"] == "loaded"
    assert status["models"][0]["shares"] is None
    assert status["workers"] == [{"pid": 7, "model": "a", "rss_bytes": None, "device_bytes": None}]
    assert status["leases"][0]["client"] == "key-1"


async def test_metrics_count_requests_answers_and_tokens() -> None:
    residency = FakeResidency(delta("hi"), finished("stop", prompt=3, completion=2))
    async with client_of(make_app(residency)) as client:
        await client.post("/v1/chat/completions", json=chat_body())
        text = (await client.get("/metrics")).text
        as_json = (await client.get("/v1/metrics")).json()
    assert 'innkeeper_answers_total{model="a",outcome="ok"} 1.0' in text
    assert 'innkeeper_tokens_total{kind="completion",model="a"} 2.0' in text
    assert 'route="/v1/chat/completions",status="200"' in text
    assert "innkeeper_answers_active 0.0" in text
    samples = {s["name"] + str(s["labels"].get("kind")): s["value"] for s in as_json["innkeeper_tokens"]["samples"]}
    assert samples["innkeeper_tokens_totalprompt"] == 3


async def test_metrics_show_the_residency() -> None:
    residency = FakeResidency()
    residency.snapshot = SimpleNamespace(
        budget=SimpleNamespace(total_bytes=10, charged_bytes=4, available_bytes=6, overhead_bytes=1),
        models=(SimpleNamespace(id="a", state="loaded", leases=1, waiting=0, charged_bytes=4, loads=2, evictions=1),),
        workers=(
            SimpleNamespace(pid=7, model="a", kernels="portable", rss_bytes=5, device_bytes=4, load_s=0.5),
            SimpleNamespace(pid=8, model=None, kernels=None, rss_bytes=1, device_bytes=0, load_s=None),
        ),
    )
    async with client_of(make_app(residency)) as client:
        text = (await client.get("/metrics")).text
    for line in (
        'innkeeper_budget_bytes{kind="charged"} 4.0',
        'innkeeper_model_state{model="a",state="loaded"} 1.0',
        'innkeeper_leases{model="a"} 1.0',
        'innkeeper_loads_total{model="a"} 2.0',
        'innkeeper_worker_info{kernels="portable",model="a",pid="7"} 1.0',
        'innkeeper_worker_info{kernels="",model="",pid="8"} 1.0',
        'innkeeper_worker_load_seconds{model="a",pid="7"} 0.5',
    ):
        assert line in text.splitlines()
    assert 'innkeeper_worker_load_seconds{model="",pid="8"}' not in text


async def test_access_log_has_one_line_and_no_prompt(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    residency = FakeResidency(delta("an answer nobody may read"), finished())
    body = chat_body(messages=[{"role": "user", "content": "a secret prompt"}])
    async with client_of(make_app(residency, keys=KEYS)) as client:
        await client.post("/v1/chat/completions?key=hidden", json=body, headers={"x-api-key": KEY})
    lines = [record for record in caplog.records if record.name == "innkeeper.access"]
    assert len(lines) == 1
    fields: dict[str, Any] = vars(lines[0])["innkeeper_fields"]
    assert fields["status"] == 200
    assert fields["model"] == "a"
    assert fields["outcome"] == "ok"
    assert fields["client"] == "key-1"
    told = " ".join(str(vars(record)) for record in caplog.records if record.name.startswith("innkeeper"))
    for secret in ("secret prompt", "nobody may read", "hidden", KEY):
        assert secret not in told


def test_import_brings_no_numeric_library() -> None:
    code = (
        "import sys, gateway.server\n"
        "heavy = {'mlx', 'mlx_lm', 'numpy', 'transformers', 'torch', 'tokenizers', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


async def test_openapi_of_client_errors_are_typed() -> None:
    async with client_of(make_app()) as client:
        answer: httpx.Response = await client.post("/v1/chat/completions", content=b"{", headers=JSON)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
