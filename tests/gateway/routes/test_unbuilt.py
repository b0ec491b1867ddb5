"""Routes without an engine still say what is wrong with the model that was asked for."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.routes import unbuilt
from tests.gateway.helpers_app import client_of, make_catalog, make_settings
from tests.gateway.helpers_residency import FakeResidency

KINDS = ("text", "embedding", "rerank", "stt", "tts")
REGISTRY = "models:\n" + "".join(
    f'  - {{id: {kind}, source: "sim:", simulate: {{weights: 1MiB, task: {kind}}}}}\n' for kind in KINDS
)
JSON_ROUTES = [("/v1/audio/speech", "tts")]
FORM_ROUTES = [("/v1/audio/transcriptions", "stt"), ("/v1/audio/translations", "stt")]
VOICES = [("/v1/audio/voices", "tts")]


def client() -> httpx.AsyncClient:
    return client_of(create_app(make_settings(), make_catalog(REGISTRY), FakeResidency()))


async def ask(path: str, model: Any) -> tuple[int, Any]:
    """Status and error of a request for this model, as its route takes it."""
    async with client() as http:
        if (path, "stt") in FORM_ROUTES:
            answer = await http.post(
                path, files={"file": ("a.wav", b"RIFF")}, data={} if model is None else {"model": model}
            )
        elif path == "/v1/audio/voices":
            answer = await http.get(path, params={"model": model})
        else:
            answer = await http.post(path, json={"input": "x", **({} if model is None else {"model": model})})
    return answer.status_code, answer.json()["error"]


@pytest.mark.parametrize(("path", "kind"), JSON_ROUTES + FORM_ROUTES + VOICES)
async def test_model_of_the_right_kind_is_not_supported_yet(path: str, kind: str) -> None:
    status, error = await ask(path, kind)
    assert (status, error["code"]) == (501, "not_supported")


@pytest.mark.parametrize(("path", "kind"), JSON_ROUTES + FORM_ROUTES + VOICES)
async def test_model_of_another_kind_is_400_that_lists_suitable_ones(path: str, kind: str) -> None:
    status, error = await ask(path, "text")
    assert (status, error["code"]) == (400, "wrong_model_kind")
    assert error["message"].endswith(f"suitable: {kind}")


@pytest.mark.parametrize(("path", "kind"), JSON_ROUTES + FORM_ROUTES + VOICES)
async def test_unknown_model_is_404(path: str, kind: str) -> None:
    status, error = await ask(path, "nobody")
    assert (status, error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(("path", "kind"), JSON_ROUTES + FORM_ROUTES)
async def test_missing_model_is_400(path: str, kind: str) -> None:
    status, error = await ask(path, None)
    assert (status, error["param"]) == (400, "model")
    assert "model is missing" in error["message"]


async def test_form_routes_need_a_form_they_can_read() -> None:
    async with client() as http:
        json = await http.post("/v1/audio/transcriptions", json={"model": "stt"})
        torn = await http.post(
            "/v1/audio/transcriptions", content=b"--x", headers={"content-type": "multipart/form-data"}
        )
        file = await http.post("/v1/audio/transcriptions", files={"model": ("a", b"stt")})
    assert (json.status_code, torn.status_code, file.status_code) == (415, 400, 400)
    assert "multipart/form-data" in json.json()["error"]["message"]


def test_every_route_that_needs_a_kind_is_tested() -> None:
    tested = {path for path, _ in JSON_ROUTES + FORM_ROUTES + VOICES}
    assert tested == {route.path for route in unbuilt.ROUTES}
