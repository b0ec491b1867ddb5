"""The guards together, as a browser, another site, a thief of keys and a sender of gigabytes meet them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.errors import NoRoomBesidePinned
from gateway.settings import ApiKey
from tests.gateway.helpers_app import JSON, KEY, chat_body, client_of, make_app
from tests.gateway.helpers_residency import FakeResidency, delta, finished, refusing

CHAT = "/v1/chat/completions"
OURS = "https://app.example"
EVIL = "https://evil.example"


def answering() -> FakeResidency:
    return FakeResidency(delta("hi"), finished())


# --- host guard -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "localhost", "LOCALHOST.:8000", "x.localhost", "[::1]:8000", "127.9.9.9",
             "host.docker.internal:8000", "nas.lan:9"]
)  # fmt: skip
async def test_host_loopback_and_allowed_names_pass(host: str) -> None:
    async with client_of(make_app(allowed_hosts=("nas.lan",))) as client:
        assert (await client.get("/health", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "192.168.1.5", "localhost@evil.example", "localhost evil", "", "[::2]"],
)
async def test_host_rebound_name_is_403(host: str) -> None:
    async with client_of(make_app()) as client:
        answer = await client.get("/v1/models", headers={"host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "host_not_allowed"


async def test_host_second_header_is_checked_too() -> None:
    async with client_of(make_app()) as client:
        answer = await client.get("/v1/models", headers=[("host", "localhost"), ("host", "evil.example")])
    assert answer.status_code == 403


async def test_host_any_name_when_bound_to_network() -> None:
    async with client_of(make_app(host="0.0.0.0", keys=[ApiKey(KEY)])) as client:
        assert (await client.get("/health", headers={"host": "box.lan"})).status_code == 200


# --- origin guard ---------------------------------------------------------------------------------------------------


async def test_origin_text_plain_post_of_another_site_to_admin_is_403() -> None:
    headers = {"origin": EVIL, "content-type": "text/plain", "sec-fetch-site": "cross-site"}
    async with client_of(make_app()) as client:
        answer = await client.post("/admin/models/a/unload", content=b"{}", headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "origin_not_allowed"


@pytest.mark.parametrize(
    "headers",
    [{"origin": EVIL}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}, {"origin": "http://127.0.0.1:9999"}],
)
async def test_origin_unsafe_methods_and_admin_reads_are_403(headers: dict[str, str]) -> None:
    async with client_of(make_app(answering())) as client:
        assert (await client.get("/admin/status", headers=headers)).status_code == 403
        assert (await client.post(CHAT, json=chat_body(), headers=headers)).status_code == 403
        assert (await client.delete("/v1/responses/x", headers=headers)).status_code == 403
        assert (await client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers", [{}, {"origin": OURS, "sec-fetch-site": "cross-site"}, {"origin": "http://127.0.0.1:8000"}]
)
async def test_origin_own_allowed_and_absent_pass(headers: dict[str, str]) -> None:
    async with client_of(make_app(answering(), cors_origins=(OURS,))) as client:
        assert (await client.get("/admin/status", headers=headers)).status_code == 200
        assert (await client.post(CHAT, json=chat_body(), headers=headers)).status_code == 200


async def test_origin_star_opens_all_but_admin() -> None:
    async with client_of(make_app(answering(), cors_origins=("*",))) as client:
        assert (await client.post(CHAT, json=chat_body(), headers={"origin": EVIL})).status_code == 200
        assert (await client.get("/admin/status", headers={"origin": EVIL})).status_code == 403


# --- CORS -----------------------------------------------------------------------------------------------------------

PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type",
}


async def test_cors_preflight_needs_no_key() -> None:
    app = make_app(cors_origins=(OURS,), keys=[ApiKey(KEY)])
    async with client_of(app) as client:
        answer = await client.options(CHAT, headers={"origin": OURS, **PREFLIGHT})
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == OURS
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "authorization, content-type"
    assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in answer.headers


async def test_cors_preflight_of_other_origin_is_403_without_headers() -> None:
    async with client_of(make_app(cors_origins=(OURS,))) as client:
        answer = await client.options(CHAT, headers={"origin": EVIL, **PREFLIGHT})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


async def test_cors_headers_on_answers_errors_and_streams() -> None:
    app = make_app(answering(), cors_origins=(OURS,), keys=[ApiKey(KEY)])
    mine = {"origin": OURS, "x-api-key": KEY}
    async with client_of(app) as client:
        answers = [
            await client.get("/v1/models", headers=mine),
            await client.get("/v1/models", headers={"origin": OURS}),  # 401
            await client.get("/nothing", headers=mine),
            await client.get(CHAT, headers=mine),
            await client.post(CHAT, json={}, headers=mine),
            await client.post(CHAT, json=chat_body(stream=True), headers=mine),
        ]
    assert [answer.status_code for answer in answers] == [200, 401, 404, 405, 400, 200]
    for answer in answers:
        assert answer.headers["access-control-allow-origin"] == OURS
        assert "access-control-allow-credentials" not in answer.headers
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


async def test_cors_star_is_answered_with_star_and_no_credentials() -> None:
    async with client_of(make_app(cors_origins=("*",))) as client:
        answer = await client.get("/v1/models", headers={"origin": EVIL})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers


async def test_cors_is_silent_without_a_list() -> None:
    async with client_of(make_app()) as client:
        answer = await client.get("/v1/models", headers={"origin": EVIL})
    assert not [name for name in answer.headers if name.startswith("access-control")]


# --- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [{"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer  {KEY} "}, {"x-api-key": KEY},
     {"authorization": "Bearer other", "x-api-key": KEY}],
)  # fmt: skip
async def test_auth_key_in_either_header(headers: dict[str, str]) -> None:
    async with client_of(make_app(keys=[ApiKey("first"), ApiKey(KEY)])) as client:
        assert (await client.get("/v1/models", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": f"Basic {KEY}"}, {"authorization": "Bearer"}, {"x-api-key": ""}, {"x-api-key": KEY + "x"},
     {"x-api-key": KEY[:-1]}, {"x-api-key": "\xff\xfe"}],
)  # fmt: skip
async def test_auth_wrong_key_is_401_in_envelope(headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    async with client_of(make_app(keys=[ApiKey(KEY)])) as client:
        openai = await client.get("/v1/models", headers=raw)
        anthropic = await client.post("/v1/messages", headers=raw)
        ollama = await client.get("/api/tags", headers=raw)
    assert openai.status_code == anthropic.status_code == ollama.status_code == 401
    assert openai.headers["www-authenticate"] == "Bearer"
    assert openai.json()["error"]["code"] == "invalid_api_key"
    assert anthropic.json()["error"]["type"] == "authentication_error"
    assert isinstance(ollama.json()["error"], str)


async def test_auth_without_keys_ignores_what_is_sent() -> None:
    async with client_of(make_app()) as client:
        answer = await client.get("/admin/status", headers={"authorization": "Bearer anything"})
    assert answer.status_code == 200


async def test_auth_scope_is_named() -> None:
    async with client_of(make_app(keys=[ApiKey(KEY, frozenset({"infer"}))])) as client:
        answer = await client.get("/admin/status", headers={"x-api-key": KEY})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "insufficient_scope"
    assert "admin" in answer.json()["error"]["message"]


async def test_concurrency_of_a_key_is_429_and_comes_back() -> None:
    residency = answering()
    keys = [ApiKey(KEY, concurrency=1), ApiKey("sk-two")]
    async with client_of(make_app(residency, keys=keys)) as client:
        statuses = []

        async def script(_request: object) -> AsyncIterator[object]:
            # While this key's first request is being answered, it and another key ask again.
            residency.say(delta("x"), finished())
            for key in (KEY, "sk-two"):
                inner = await client.post(CHAT, json=chat_body(), headers={"x-api-key": key})
                statuses.append((inner.status_code, inner.headers.get("retry-after")))
            yield finished()

        residency.script = script  # type: ignore[assignment]
        outer = await client.post(CHAT, json=chat_body(), headers={"x-api-key": KEY})
        again = await client.post(CHAT, json=chat_body(), headers={"x-api-key": KEY})
    assert statuses == [(429, "1"), (200, None)]
    assert (outer.status_code, again.status_code) == (200, 200)


# --- bodies ---------------------------------------------------------------------------------------------------------


async def test_body_announced_too_large_is_413_naming_limit() -> None:
    async with client_of(make_app(max_body_bytes=100)) as client:
        answer = await client.post(CHAT, content=b"x" * 101, headers=JSON)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    assert "100 bytes" in answer.json()["error"]["message"]


async def test_body_in_chunks_too_large_is_413() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x" * 10

    async with client_of(make_app(max_body_bytes=100)) as client:
        answer = await client.post(CHAT, content=chunks(), headers=JSON)
    assert answer.status_code == 413


async def test_body_of_audio_has_its_own_limit() -> None:
    async with client_of(make_app(max_body_bytes=10, max_audio_body_bytes=500)) as client:
        fits = await client.post("/v1/audio/transcriptions", files={"file": b"x" * 100}, data={"model": "nobody"})
        large = await client.post("/v1/audio/transcriptions", files={"file": b"x" * 500}, data={"model": "nobody"})
    assert (fits.status_code, large.status_code) == (404, 413)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", None])
async def test_body_of_another_type_is_415(content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    async with client_of(make_app()) as client:
        answer = await client.post(CHAT, content=b"{}", headers=headers)
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]["message"]


async def test_body_json_with_charset_passes() -> None:
    async with client_of(make_app(answering())) as client:
        request = client.build_request("POST", CHAT, json=chat_body())
        request.headers["content-type"] = "Application/JSON; charset=utf-8"
        answer: httpx.Response = await client.send(request)
    assert answer.status_code == 200


async def test_error_headers_tell_client_whether_to_retry() -> None:
    residency = refusing(NoRoomBesidePinned("no room beside a"))
    async with client_of(make_app(residency)) as client:
        answer = await client.post(CHAT, json=chat_body())
    assert answer.status_code == 507
    assert answer.headers["x-should-retry"] == "false"
