"""A gateway for one model, and its worker that waits without one."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

__all__ = ["registry", "resident", "wait_for_spare"]

IMPORTS_BYTES = 40 * 1024**2  # a worker that has imported mlx_lm holds more than this
REST_S = 1.0  # a worker at rest has given its heap back after half a second


def registry(path: Path, spare: int) -> str:
    return f"workers: {{spare: {spare}}}\nmodels: [{{id: model, source: {str(path)!r}}}]\n"


def wait_for_spare(url: str) -> None:
    """Until a worker without a model has done its imports: its memory has stopped growing."""
    deadline = time.monotonic() + 60
    last = 0
    while time.monotonic() < deadline:
        workers = httpx.get(f"{url}/admin/status").json()["workers"]
        spares = [worker["pid"] for worker in workers if worker["model"] is None]
        size = resident(spares[0]) if spares else 0
        if size > IMPORTS_BYTES and size == last:
            return
        last = size
        time.sleep(REST_S)
    raise SystemExit("no warm spare within 60 s")


def resident(pid: int) -> int:
    """Private anonymous pages and this process's share of file pages, in bytes (Linux)."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(fields[name].split()[0]) * 1024 for name in ("Anonymous", "Pss_File"))
