"""Wishes about thinking, of models whose templates show none, or no way of saying how much."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.applications import Starlette

from engines.header import GgufValueType
from gateway.app import create_app
from gateway.registry.catalog import Catalog
from gateway.registry.load import load_registry
from tests.engines.helpers_gguf_bytes import WHOLE_LLAMA, pair, small_llama
from tests.gateway.helpers_app import client_of, make_settings
from tests.gateway.helpers_residency import FakeResidency, delta, finished

TEMPLATES = {
    "plain": "{{ messages[0].content }}",
    "thinker": "{{ messages[0].content }}<think>",
    "told": "{{ reasoning_effort }}<think></think>",
}
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def app(tmp_path: Path) -> Starlette:
    lines = ["models:", "  - {id: sim, source: 'sim:', simulate: {weights: 1MiB}}"]
    for name, template in TEMPLATES.items():
        metadata = [pair("tokenizer.chat_template", GgufValueType.STRING, template)]
        (tmp_path / f"{name}.gguf").write_bytes(small_llama(metadata, WHOLE_LLAMA))
        lines.append(f"  - {{id: {name}, source: {name}.gguf}}")
    path = tmp_path / "registry.yaml"
    path.write_text("\n".join(lines))
    return create_app(make_settings(), Catalog(load_registry(path)), FakeResidency(delta("Hi"), finished()))


@pytest.mark.parametrize(
    ("model", "ignored"),
    [
        ("plain", "metadata, thinking, output_config.effort"),
        ("thinker", "metadata, output_config.effort"),
        ("told", "metadata"),
        ("sim", "metadata"),
    ],
)
async def test_anthropics_wish_that_no_model_hears_is_named(app: Starlette, model: str, ignored: str) -> None:
    body = {
        "model": model, "messages": MESSAGES, "max_tokens": 9, "metadata": {}, "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
    }  # fmt: skip
    async with client_of(app) as http:
        answer = await http.post("/v1/messages", json=body)
        silent = await http.post("/v1/messages", json={**body, "thinking": {"type": "disabled"}, "output_config": {}})
    assert (answer.status_code, answer.headers["x-innkeeper-ignored"]) == (200, ignored)
    assert silent.headers["x-innkeeper-ignored"] == "metadata"


async def test_ollamas_level_is_refused_by_a_model_that_does_not_think(app: Starlette) -> None:
    body = {"messages": MESSAGES, "think": "high", "stream": False}
    async with client_of(app) as http:
        refused = await http.post("/api/chat", json={**body, "model": "plain"})
        taken = [await http.post("/api/chat", json={**body, "model": model}) for model in ("thinker", "told", "sim")]
        untold = await http.post("/api/chat", json={"messages": MESSAGES, "model": "plain", "stream": False})
    assert (refused.status_code, refused.json()) == (
        400,
        {"error": "think: this model does not think before it answers"},
    )
    assert [answer.status_code for answer in (*taken, untold)] == [200] * 4
