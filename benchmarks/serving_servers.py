"""The servers that are compared: each as a context manager that yields its URL and the model's name there."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from gateway_process import gateway_process

__all__ = ["Server", "innkeeper", "llama_server", "mlx_lm_server"]

_START_S = 300.0  # on a GPU a load compiles kernels


@dataclass(frozen=True)
class Server:
    """One that answers OpenAI's ``/v1/completions``."""

    name: str
    url: str
    model: str


@contextmanager
def innkeeper(path: Path, rows: int, kv_grant: str | None = None) -> Iterator[Server]:
    """The gateway with this one model, loaded; ``rows`` decode together at most. ``kv_grant`` as in a registry."""
    model: dict[str, Any] = {"id": "model", "source": str(path), "concurrency": rows, "queue_timeout_s": 600}
    if kv_grant:
        model["kv_grant"] = kv_grant
    with gateway_process(json.dumps({"models": [model]})) as gateway:
        started = time.perf_counter()
        httpx.post(f"{gateway.url}/admin/models/model/load", timeout=_START_S).raise_for_status()
        print(f"innkeeper       loaded in {time.perf_counter() - started:.1f} s", flush=True)
        yield Server("innkeeper", gateway.url, "model")


@contextmanager
def llama_server(binary: Path, path: Path, rows: int, context: int, threads: int) -> Iterator[Server]:
    """llama.cpp's server on the same file, with ``rows`` slots of ``context`` tokens each."""
    port = _free_port()
    command = [str(binary), "-m", str(path), "--port", str(port), "-np", str(rows), "-c", str(rows * context)]
    command += ["-t", str(threads), "--no-webui", "--no-cache-prompt"]
    with _process("llama-server", command, port, "/health") as url:
        yield Server("llama-server", url, "model")


@contextmanager
def mlx_lm_server(folder: Path, rows: int) -> Iterator[Server]:
    """mlx-lm's server on the stock form of the model."""
    port = _free_port()
    command = [sys.executable, "-m", "mlx_lm.server", "--model", str(folder), "--port", str(port)]
    command += ["--decode-concurrency", str(rows), "--prompt-concurrency", str(rows), "--prompt-cache-size", "0"]
    with _process("mlx_lm.server", command, port, "/health") as url:
        yield Server("mlx_lm.server", url, str(folder))


@contextmanager
def _process(name: str, command: Sequence[str], port: int, health: str) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait(name, url + health, process)
            yield url
        except BaseException:
            log.seek(0)
            print(log.read()[-2000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(name: str, url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"{name} ended with {process.returncode}")
        try:
            if httpx.get(url, timeout=5).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{name} does not answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
