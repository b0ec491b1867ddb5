"""Which kind a model is of, where its files do not say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app import create_app
from gateway.machine import Machine
from gateway.registry.catalog import Catalog
from gateway.registry.load import parse_registry
from tests.engines.encoders.helpers_tiny_encoders import write_tiny
from tests.engines.helpers_gguf_bytes import small_llama
from tests.gateway.helpers_app import client_of, make_settings
from tests.gateway.helpers_residency import FakeResidency

GIB = 1024**3
MACHINE = Machine("cpu", ram_bytes=16 * GIB, device_bytes=16 * GIB, cores=2)

ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/embeddings": {"input": "x"},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/api/embed": {"input": "x"},
    "/tokenize": {"prompt": "x"},
}


async def answers(tmp_path: Path, entry: str) -> dict[str, tuple[int, str]]:
    """Status and body of every route's answer about the model ``m``."""
    text = f"models:\n  - {{id: m{entry}}}\n"
    catalog = Catalog(parse_registry(text, tmp_path / "registry.yaml", machine=MACHINE))
    async with client_of(create_app(make_settings(), catalog, FakeResidency())) as client:
        gave = {path: await client.post(path, json={"model": "m", **body}) for path, body in ASKED.items()}
    return {path: (answer.status_code, answer.text) for path, answer in gave.items()}


@pytest.mark.parametrize("files", ["cut short", "missing"])
async def test_model_whose_files_cannot_be_read_is_told_so_on_every_route(tmp_path: Path, files: str) -> None:
    if files == "cut short":
        (tmp_path / "m.gguf").write_bytes(small_llama()[:-100])
    for path, (status, text) in (await answers(tmp_path, ", source: m.gguf")).items():
        assert status == 503 and "m.gguf" in text, path


async def test_model_whose_entry_says_the_kind_is_of_that_kind(tmp_path: Path) -> None:
    found = await answers(tmp_path, ", source: m.gguf, task: embedding")
    assert wrong_kind(found) == {"/v1/chat/completions", "/v1/rerank", "/tokenize"}
    assert found["/v1/embeddings"][0] == 503


async def test_model_that_cannot_be_run_keeps_its_kind_and_says_why(tmp_path: Path) -> None:
    (write_tiny(tmp_path / "m", "bert") / "tokenizer.json").unlink()
    found = await answers(tmp_path, ", source: m")
    assert wrong_kind(found) == {"/v1/chat/completions", "/v1/rerank", "/tokenize"}
    assert found["/v1/embeddings"][0] == 503 and "tokenizer.json" in found["/v1/embeddings"][1]


async def test_model_of_no_known_kind_is_not_offered(tmp_path: Path) -> None:
    text = (
        "models:\n  - {id: m, source: m.gguf}\n"
        '  - {id: e, source: "sim:", simulate: {weights: 1MiB, task: embedding}}\n'
        '  - {id: t, source: "sim:", simulate: {weights: 1MiB}}\n'
    )
    catalog = Catalog(parse_registry(text, tmp_path / "registry.yaml", machine=MACHINE))
    async with client_of(create_app(make_settings(), catalog, FakeResidency())) as client:
        answer = await client.post("/v1/chat/completions", json={"model": "e", **ASKED["/v1/chat/completions"]})
    assert answer.json()["error"]["message"] == "'e' is an embedding model; suitable: t"


def wrong_kind(found: dict[str, tuple[int, str]]) -> set[str]:
    return {path for path, (status, text) in found.items() if status == 400 and "wrong_model_kind" in text}
