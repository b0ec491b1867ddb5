"""Soak: minutes of Poisson traffic over more models than there is room for, with clients that leave at any moment.

``python soak.py [--seconds 600] [--rate 12] [--seed 1]``. Twelve simulated models share room for four. At the end, once the
traffic has stopped and the gateway is quiet, these must be as they were after the warm-up: leases 0, queue 0, open
descriptors, asyncio tasks, worker processes (at most four models and the spare); and the gateway's resident memory may have grown
by less than 5 %. Exits 1 and says what differs otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

MODELS = 12
READY = "Innkeeper is ready at "
REGISTRY = """
memory: {device: 16GiB, budget: 8GiB}
workers: {spare: 0}
defaults: {ttl_s: 20, queue_timeout_s: 30, fairness_wait_s: 2, drain_timeout_s: 10, abandon_grace_s: 1}
models:
""" + "".join(
    f'  - {{id: m{i}, source: "sim:", simulate: {{weights: {1500 + 40 * i}MiB, load_s: {0.05 + 0.02 * i:.2f},'
    f" ttft_s: 0.01, tokens_per_s: 400}}}}\n"
    for i in range(MODELS)
)
QUIET_TIMEOUT_S = 60
CLOSING_TIMEOUT_S = 30
WARM_UP_SHARE = 0.1
MAX_GROWTH = 0.05


@dataclass(frozen=True)
class Reading:
    """What must not grow."""

    descriptors: Counter[str]  # by what they are
    tasks: int
    resident_bytes: int

    def __str__(self) -> str:
        return f"{self.descriptors.total()} descriptors, {self.tasks} tasks, {self.resident_bytes} resident bytes"


def main() -> int:
    parser = argparse.ArgumentParser(description="Innkeeper's soak test")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, default=12, help="requests a second, on average")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        registry = Path(directory) / "registry.yaml"
        registry.write_text(REGISTRY)
        log = (Path(directory) / "log").open("w")
        command = [sys.executable, "-m", "gateway.cli", "serve", "--registry", str(registry), "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if line.startswith(READY))
            url = line.removeprefix(READY).strip()
            problems = asyncio.run(soak(url, process.pid, options))
            workers = children(process.pid)
            process.send_signal(signal.SIGTERM)
            if process.wait(timeout=60) != 0:
                problems.append(f"the gateway exited with status {process.returncode}")
            left = [pid for pid in workers if Path(f"/proc/{pid}").exists()]
            if left:
                problems.append(f"workers outlived the gateway: {left}")
        finally:
            if process.poll() is None:
                process.kill()
            log.close()
    for problem in problems:
        print("soak:", problem)
    print("soak:", "FAILED" if problems else "all as it was at the start")
    return 1 if problems else 0


async def soak(url: str, pid: int, options: argparse.Namespace) -> list[str]:
    rng = random.Random(options.seed)
    outcomes: Counter[str] = Counter()
    async with visitor(url) as client:
        warm_up = options.seconds * WARM_UP_SHARE
        await traffic(url, rng, warm_up, options.rate, outcomes)
        before = await quiet_reading(client, pid)
        print(f"soak: after {warm_up:.0f} s of warm-up: {before}", flush=True)
        await traffic(url, rng, options.seconds - warm_up, options.rate, outcomes)
        after = await quiet_reading(client, pid, before)
        print(f"soak: after {options.seconds:.0f} s: {after}; {dict(outcomes)}", flush=True)
        status = (await client.get("/admin/status")).json()
    problems = []
    if more := after.descriptors - before.descriptors:
        problems.append(f"open descriptors grew by {dict(more)}")
    if after.tasks > before.tasks:
        problems.append(f"asyncio tasks grew from {before.tasks} to {after.tasks}")
    growth = after.resident_bytes / before.resident_bytes - 1
    print(f"soak: the gateway's resident memory grew by {growth:.1%}")
    if growth > MAX_GROWTH:
        problems.append(f"resident memory grew by {growth:.1%}")
    held = [model for model in status["models"] if model["leases"] or model["waiting"]]
    if held or status["leases"] or status["queue"]:
        problems.append(f"leases or waiters are left: {held}")
    if status["budget"]["charged_bytes"] != sum(model["charged_bytes"] for model in status["models"]):
        problems.append("the models' charged bytes do not add up to the budget's")
    loaded = [model["id"] for model in status["models"] if model["state"] == "loaded"]
    if len(children(pid)) != len(loaded):
        problems.append(f"{len(children(pid))} worker processes for {len(loaded)} loaded models")
    unexpected = {outcome: count for outcome, count in outcomes.items() if outcome.startswith("unexpected")}
    if unexpected:
        problems.append(f"unexpected answers: {unexpected}")
    return problems


def visitor(url: str) -> httpx.AsyncClient:
    """A client that makes a connection for each request."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=url, timeout=120, limits=limits)


async def traffic(url: str, rng: random.Random, seconds: float, rate: float, outcomes: Counter[str]) -> None:
    """Requests at exponential intervals; each runs on its own.

    By a client that is closed at the end: a request cancelled while it connects leaves its connection in the client's pool,
    where it stays open, unused, until another request comes.
    """
    end = time.monotonic() + seconds
    tasks: set[asyncio.Task[None]] = set()
    async with visitor(url) as client:
        while time.monotonic() < end:
            await asyncio.sleep(rng.expovariate(rate))
            task = asyncio.create_task(request(client, random.Random(rng.random()), outcomes))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)


async def request(client: httpx.AsyncClient, rng: random.Random, outcomes: Counter[str]) -> None:
    """One client: a popular or an unpopular model, streamed or not, patient or gone at a random moment."""
    body: dict[str, Any] = {
        "model": f"m{min(int(rng.expovariate(0.5)), MODELS - 1)}",
        "messages": [{"role": "user", "content": "go on"}],
        "max_tokens": rng.choice([1, 20, 200]),
        "stream": rng.random() < 0.7,
    }
    patience = rng.expovariate(2) if rng.random() < 0.4 else None
    try:
        async with asyncio.timeout(patience):
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                text = await response.aread()
    except TimeoutError:
        outcomes["left"] += 1
        return
    except httpx.HTTPError as error:
        outcomes[f"unexpected {type(error).__name__}"] += 1
        return
    ended = not body["stream"] or text.endswith(b"data: [DONE]\n\n")
    if response.status_code == 200 and ended:
        outcomes["answered"] += 1
    elif response.status_code == 503:
        outcomes["refused 503"] += 1
    else:
        outcomes[f"unexpected {response.status_code}"] += 1


async def quiet_reading(client: httpx.AsyncClient, pid: int, before: Reading | None = None) -> Reading:
    """Waits until no lease is out and nothing moves, then reads: until there are no more descriptors than before.

    The last connections may still be closing, so without an earlier reading the least of a second's is what stays.
    """
    deadline = time.monotonic() + QUIET_TIMEOUT_S
    while time.monotonic() < deadline:
        status = (await client.get("/admin/status")).json()
        moving = [m["id"] for m in status["models"] if m["state"] not in ("loaded", "unloaded", "failed")]
        if not status["leases"] and not status["queue"] and not moving:
            break
        await asyncio.sleep(0.1)
    for model in status["models"]:  # the same models at both readings: none
        await client.post(f"/admin/models/{model['id']}/unload", json={"mode": "drain"})
    metrics = (await client.get("/v1/metrics")).json()
    tasks = int(metrics["innkeeper_asyncio_tasks"]["samples"][0]["value"])
    readings = []
    for _ in range(20 if before is None else 20 * CLOSING_TIMEOUT_S):
        readings.append(read_process(pid, tasks))
        if before is not None and readings[-1].descriptors <= before.descriptors:
            if more := readings[0].descriptors - before.descriptors:
                print(f"soak: {dict(more)} more were open for {0.05 * (len(readings) - 1):.1f} s", flush=True)
            return readings[-1]
        await asyncio.sleep(0.05)
    return min(readings, key=lambda reading: reading.descriptors.total())


def read_process(pid: int, tasks: int) -> Reading:
    """Descriptors and resident bytes of a process (Linux)."""
    descriptors = Counter(kind for kind in map(described, Path(f"/proc/{pid}/fd").iterdir()) if kind is not None)
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Reading(descriptors, tasks, pages * os.sysconf("SC_PAGE_SIZE"))


def described(descriptor: Path) -> str | None:
    """What an open descriptor is, without its number; None when it is closed by now."""
    try:
        target = str(descriptor.readlink())
    except FileNotFoundError:
        return None
    return target.partition(":[")[0] if target.startswith(("socket:", "pipe:")) else target


def children(pid: int) -> list[int]:
    """Direct children of a process (Linux)."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


if __name__ == "__main__":
    sys.exit(main())
