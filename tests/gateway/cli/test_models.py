"""``innkeeper models``: from a gateway and from a registry file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli import main
from tests.engines.helpers_gguf_bytes import small_llama
from tests.gateway.cli.helpers_gateway import MODELS, innkeeper, scripted_gateway

REGISTRY = """
models:
  - {id: big, source: "sim:", aliases: [large, huge], simulate: {weights: 8GiB}}
  - {id: tiny, source: ./tiny.gguf}
  - {id: gone, source: ./gone.gguf}
"""


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    path = tmp_path / "registry.yaml"
    path.write_text(REGISTRY)
    (tmp_path / "tiny.gguf").write_bytes(small_llama())
    return path


def test_models_of_a_gateway() -> None:
    with scripted_gateway() as gateway:
        result = innkeeper("models", url=gateway.url)
        as_json = innkeeper("models", "--json", url=gateway.url)
    assert (result.returncode, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["id", "task", "context", "weights", "aliases", "state"]
    assert lines[2] == ["first", "text", "2048", "3.0", "MiB", "one", "ready", "to", "load"]
    assert "unusable: x.gguf: no such file" in result.stdout
    assert json.loads(as_json.stdout) == MODELS


def test_models_shows_the_state_where_the_gateway_tells_it() -> None:
    with scripted_gateway() as gateway:
        gateway.models = {"data": [{"id": "a", "task": "text", "state": "loaded"}]}
        result = innkeeper("models", url=gateway.url)
    assert result.stdout.splitlines()[1].split() == ["a", "text", "loaded"]


def test_models_of_a_registry(registry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--registry", str(registry)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["big", "text", "2147483647", "8.0", "GiB", "large,", "huge", "ready", "to", "load"]
    assert lines[2].split()[:3] == ["tiny", "text", "2048"]
    assert "gone.gguf: no such file" in lines[3]


def test_models_of_a_registry_as_json(registry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--registry", str(registry), "--json"]) == 0
    big, tiny, gone = json.loads(capsys.readouterr().out)
    assert (big["id"], big["footprint_bytes"], big["aliases"]) == ("big", 8 << 30, ["large", "huge"])
    assert (tiny["context"], tiny["error"]) == (2048, None)
    assert (tiny["profile"], tiny["profiles"]) == (None, [])
    assert gone["error"]["code"] == "model_load_failed"


def test_models_of_an_empty_registry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "registry.yaml").write_text("models: []\n")
    assert main(["models", "--registry", str(tmp_path / "registry.yaml")]) == 0
    assert capsys.readouterr().out == "no models: add one under `models:` in the registry\n"


def test_models_of_a_bad_registry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "registry.yaml"
    path.write_text("modles: []\n")
    assert main(["models", "--registry", str(path)]) == 1
    assert capsys.readouterr().err == f"innkeeper: {path}: modles: unknown key; did you mean models?\n"


def test_models_without_a_gateway() -> None:
    result = innkeeper("models")
    assert result.returncode == 1
    assert result.stderr.startswith("innkeeper: no gateway answers at http://127.0.0.1:9: ")
