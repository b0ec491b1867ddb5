"""A gateway in a process of its own, for benchmarks: started with a registry, stopped at the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

__all__ = ["GatewayProcess", "gateway_process"]

_READY = "Innkeeper is ready at "


@dataclass(frozen=True)
class GatewayProcess:
    """One that answers. ``health_s`` is from the start of its process to its first ``/health``."""

    url: str
    health_s: float
    pid: int


@contextmanager
def gateway_process(registry: str) -> Iterator[GatewayProcess]:
    """Serves this registry text on a free port; polls for ``/health`` once the port is known."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "registry.yaml"
        path.write_text(registry)
        command = [sys.executable, "-m", "gateway.cli", "serve", "--registry", str(path), "--port", "0"]
        started = time.perf_counter()
        with (Path(directory) / "log").open("w+") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            try:
                assert process.stdout is not None
                line = next((line for line in process.stdout if line.startswith(_READY)), None)
                if line is None:
                    log.seek(0)
                    raise SystemExit(f"the gateway did not start:\n{log.read()}")
                drain = threading.Thread(target=process.stdout.read, daemon=True)  # so that it never blocks on output
                drain.start()
                url = line.removeprefix(_READY).strip()
                httpx.get(f"{url}/health", timeout=10).raise_for_status()
                yield GatewayProcess(url, time.perf_counter() - started, process.pid)
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=40)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
