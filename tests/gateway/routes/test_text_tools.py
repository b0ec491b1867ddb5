"""The text tools' routes before a recording tokenizer: whom they ask, what they refuse, and who may leave."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from engines.wire import DecodeTokens, EncodeText, TokenizerAnswer
from gateway.app import create_app
from gateway.errors import ShuttingDown, WorkerDied
from tests.gateway.helpers_app import client_of, make_app, make_catalog, make_settings
from tests.gateway.helpers_residency import BOUND_S, FakeResidency

ONE = """
models:
  - {id: only, source: "sim:", context: 100, simulate: {weights: 1MiB}}
  - {id: embedder, source: "sim:", simulate: {weights: 1MiB, task: embedding}}
"""


async def test_tokenize_asks_about_the_model_and_takes_no_lease() -> None:
    residency = FakeResidency()
    residency.tokenizer.answer = TokenizerAnswer(tokens=(4, 5), texts=("a", "b"))
    async with client_of(make_app(residency)) as client:
        answer = await client.post("/tokenize", json={"model": "gpt-4o", "prompt": "x", "return_token_strs": True})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["tokens"] == [4, 5]
    assert answer.json()["token_strs"] == ["a", "b"]
    asked = EncodeText(text="x", add_special=True, parse_special=False)
    assert residency.tokenizer.asked == [("a", asked, True, False)]
    assert residency.leases == []


async def test_detokenize_asks_about_the_model() -> None:
    residency = FakeResidency()
    residency.tokenizer.answer = TokenizerAnswer(text="hi")
    async with client_of(make_app(residency)) as client:
        answer = await client.post("/detokenize", json={"model": "a", "tokens": [1]})
    assert answer.json() == {"prompt": "hi", "content": "hi"}
    assert residency.tokenizer.asked == [("a", DecodeTokens(tokens=(1,)), False, False)]


async def test_model_may_be_left_out_where_one_text_model_is_all_there_is() -> None:
    residency = FakeResidency()
    app = create_app(make_settings(), make_catalog(ONE), residency)
    async with client_of(app) as client:
        answer = await client.post("/tokenize", json={"content": "x"})
    assert answer.json() == {"tokens": []}
    assert residency.tokenizer.asked[0][0] == "only"


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "says"),
    [
        (
            "/tokenize",
            {"prompt": "x"},
            400,
            "invalid_request_error",
            "model is missing; the registry has: a, b, broken",
        ),
        ("/tokenize", {"model": "nobody", "prompt": "x"}, 404, "model_not_found", "the registry has"),
        ("/tokenize", {"model": "embedder", "prompt": "x"}, 400, "wrong_model_kind", "suitable: a, b"),
        ("/tokenize", {"model": "broken", "prompt": "x"}, 503, "model_load_failed", "nowhere.gguf"),
        ("/tokenize", {"model": "a", "prompt": "x", "n": 1}, 400, "unsupported_parameter", "'n'"),
        ("/detokenize", {"model": "a"}, 400, "invalid_request_error", "tokens is missing"),
        ("/detokenize", {"model": "embedder", "tokens": []}, 400, "wrong_model_kind", "embedding"),
    ],
)
async def test_refusals(path: str, body: dict[str, Any], status: int, code: str, says: str) -> None:
    residency = FakeResidency()
    async with client_of(make_app(residency)) as client:
        answer = await client.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert says in error["message"]
    assert residency.tokenizer.asked == []


async def test_death_of_the_process_is_503_that_may_be_retried() -> None:
    residency = FakeResidency()
    residency.tokenizer.refusal = WorkerDied("it died", retry_after_s=1.0, retry=True)
    async with client_of(make_app(residency)) as client:
        answer = await client.post("/tokenize", json={"model": "a", "prompt": "x"})
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["x-should-retry"]) == (503, "1", "true")


async def test_client_that_leaves_cancels_its_request() -> None:
    residency = FakeResidency()
    tokenizer = residency.tokenizer
    tokenizer.admit = asyncio.Event()
    app = make_app(residency)
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    received.put_nowait({"type": "http.request", "body": b'{"model": "a", "prompt": "x"}'})
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/tokenize",
        "raw_path": b"/tokenize",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    async with asyncio.timeout(BOUND_S):
        serving = asyncio.create_task(app(scope, received.get, send))
        await tokenizer.began.wait()
        assert len(app.state.services.live) == 1
        received.put_nowait({"type": "http.disconnect"})
        await serving
        assert tokenizer.cancelled.is_set()
    assert sent == []
    assert len(app.state.services.live) == 0


async def test_shutdown_ends_what_is_under_way_with_its_error() -> None:
    residency = FakeResidency()
    residency.tokenizer.admit = asyncio.Event()
    app = make_app(residency)
    async with client_of(app) as client, asyncio.timeout(BOUND_S):
        asking = asyncio.create_task(client.post("/tokenize", json={"model": "a", "prompt": "x"}))
        await residency.tokenizer.began.wait()
        app.state.services.live.end_all(ShuttingDown("the server is shutting down"))
        answer: httpx.Response = await asking
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert residency.tokenizer.cancelled.is_set()
