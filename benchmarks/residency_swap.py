"""A → B → A on the two real models in room for one, against llama-server on the same file.

- *loaded*: from asking for a model to LOADED, the other one's eviction included; the spare is warm before
- *first token*: the same, from a request to its whole answer of one token
- *llama-server*: from the start of its process to the first ``/health`` that says ready
- *mlx-lm*: a new Python process that imports mlx-lm and ends; it has loaded nothing by then

All four alternate, run by run; each figure is a median.
"""

from __future__ import annotations

import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
from gateway_process import gateway_process
from residency_status import MODELS, ask, load, model_status, status, unload, wait_for_spare

__all__ = ["measure_swap"]

_CONTEXT = 4096
_GRANT = "64MiB"
_POLL_S = 0.002


def measure_swap(*, runs: int, llama_server: Path | None) -> None:
    budget = _room_for_one()
    loaded: dict[str, list[float]] = {model: [] for model in MODELS}
    first: dict[str, list[float]] = {model: [] for model in MODELS}
    theirs: dict[str, list[float]] = {model: [] for model in MODELS}
    imports: list[float] = []
    with gateway_process(_registry(budget)) as gateway:
        for model in MODELS:  # both files are in the page cache from here on
            load(gateway.url, model)
        for _ in range(runs):
            for model, path in MODELS.items():
                wait_for_spare(gateway.url)
                loaded[model].append(load(gateway.url, model))
                _check_alone(gateway.url, model)
                if llama_server is not None:
                    theirs[model].append(_start_llama_server(llama_server, path))
            for model in MODELS:
                wait_for_spare(gateway.url)
                first[model].append(ask(gateway.url, model, 1))
            imports.append(_import_mlx_lm())
    print(f"room for one model, medians of {runs}; target: loaded at most 1.0 x llama-server")
    print(f"{'':<16}{'loaded':>10}{'first token':>13}{'llama-server':>14}{'ratio':>8}{'mlx-lm import':>15}{'ratio':>8}")
    mlx_lm = statistics.median(imports)
    for model in MODELS:
        ours = statistics.median(loaded[model])
        server = statistics.median(theirs[model]) if theirs[model] else None
        print(
            f"{model:<16}{ours:>8.2f} s{statistics.median(first[model]):>11.2f} s"
            + (f"{'-':>14}{'-':>8}" if server is None else f"{server:>12.2f} s{ours / server:>8.2f}")
            + f"{mlx_lm:>13.2f} s{ours / mlx_lm:>8.2f}"
        )


def _registry(budget: str) -> str:
    models = ", ".join(
        f"{{id: {model}, source: {str(path)!r}, context: {_CONTEXT}, kv_grant: {_GRANT}}}"
        for model, path in MODELS.items()
    )
    return f"memory: {{budget: {budget}}}\nmodels: [{models}]\n"


def _room_for_one() -> str:
    """A budget that holds either model, and not both: the larger charge, the spare, and half of the smaller charge."""
    with gateway_process(_registry("auto")) as gateway:
        charges = []
        for model in MODELS:
            load(gateway.url, model)
            ask(gateway.url, model, 1)
            charges.append(model_status(gateway.url, model)["charged_bytes"])
            unload(gateway.url, model)
        wait_for_spare(gateway.url)
        overhead = status(gateway.url)["budget"]["overhead_bytes"]
    return str(max(charges) + overhead + min(charges) // 2)


def _check_alone(url: str, model: str) -> None:
    states = {entry["id"]: entry["state"] for entry in status(url)["models"]}
    if states[model] != "loaded" or sum(state == "loaded" for state in states.values()) != 1:
        raise SystemExit(f"the budget was to hold one model: {states}")


def _start_llama_server(binary: Path, model: Path) -> float:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [str(binary), "-m", str(model), "-c", str(_CONTEXT), "--host", "127.0.0.1", "--port", str(port)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            while True:
                try:
                    if client.get("/health").status_code == 200:
                        return time.perf_counter() - began
                except httpx.TransportError:
                    if process.poll() is not None:
                        raise SystemExit(f"{binary} exited with status {process.returncode}") from None
                time.sleep(_POLL_S)
    finally:
        process.kill()
        process.wait()


def _import_mlx_lm() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import mlx_lm"], check=True)
    return time.perf_counter() - began
