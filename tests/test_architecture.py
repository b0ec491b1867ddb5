"""Imports run one way. Left may import right::

    cli → app, server → {middleware, routes, leased_response and what stands beside it} → {protocols, classify, residency}
        → {registry, settings, errors, metrics and what stands beside them} → the MLX-free seven of engines

``engines`` knows nothing of HTTP or of the gateway, and the gateway never imports MLX, NumPy or transformers.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

RANKS = {
    "gateway.cli": 5,
    "gateway.app": 4,
    "gateway.server": 4,
    "gateway.middleware": 3,
    "gateway.routes": 3,
    "gateway.leased_response": 3,
    "gateway.ending": 2,
    "gateway.services": 2,
    "gateway.outbox": 3,
    "gateway.live": 2,
    "gateway.connection": 3,
    "gateway.request_reader": 3,
    "gateway.corked_transport": 3,
    "gateway.departure": 3,
    "gateway.texts_response": 3,
    "gateway.watched_response": 3,
    "gateway.protocols": 2,
    "gateway.classify": 2,
    "gateway.residency": 2,
    "gateway.responses": 2,
    "gateway.registry": 1,
    "gateway.settings": 1,
    "gateway.errors": 1,
    "gateway.metrics": 1,
    "gateway.residency_metrics": 1,
    "gateway.scheduling_metrics": 1,
    "gateway.logs": 1,
    "gateway.network": 1,
    "gateway.machine": 1,
    "gateway.paths": 1,
}
MLX_FREE = {
    f"engines.{name}"
    for name in ("interface", "wire", "errors", "header", "detect", "footprint", "inspection", "scheduling")
}
HEAVY = {"mlx", "mlx_lm", "numpy", "transformers", "torch", "gguf", "tokenizers", "llguidance"}
HTTP = {"starlette", "uvicorn", "httpx", "gateway", "multipart", "prometheus_client", "rich"}


def python_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import at line {node.lineno}"
            module = node.module or ""
            yield from (f"{module}.{alias.name}" for alias in node.names)


def component(name: str) -> str | None:
    """``gateway.routes.chat.x`` → ``gateway.routes``; None outside the gateway's components."""
    prefix = ".".join(name.split(".")[:2])
    return prefix if prefix in RANKS else None


@pytest.mark.parametrize("path", python_files("gateway"), ids=module_name)
def test_gateway_imports_run_one_way(path: Path) -> None:
    own = component(module_name(path))
    if own is None:
        assert module_name(path) == "gateway", f"{path} is no known component: give it a rank"
    for name in imports(path):
        root = name.split(".")[0]
        assert root not in HEAVY, f"{path} imports {name}"
        if root == "engines":
            assert any(name == allowed or name.startswith(f"{allowed}.") for allowed in MLX_FREE), f"{path}: {name}"
        other = component(name)
        if own is not None and other is not None and other != own:
            assert RANKS[other] <= RANKS[own], f"{path} imports {name}, which stands to its left"


@pytest.mark.parametrize("path", python_files("engines"), ids=module_name)
def test_engines_know_nothing_of_http(path: Path) -> None:
    for name in imports(path):
        assert name.split(".")[0] not in HTTP, f"{path} imports {name}"


@pytest.mark.parametrize("modules", [sorted(MLX_FREE), ["gateway.cli", "gateway.app", "gateway.server"]], ids=str)
def test_importing_loads_nothing_heavy(modules: list[str]) -> None:
    script = f"import sys, {', '.join(modules)}\nprint(*sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.strip() == ""
