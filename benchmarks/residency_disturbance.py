"""A resident model's latency while another real model loads, again and again; open loop, from the scheduled time.

Requests for the resident model come at exponential gaps, whether the ones before are answered or not. In each round the other
model is loaded by a warm spare and unloaded; then, when a new spare is warm, some seconds pass without a load. A request counts
as *disturbed* when a load was under way at any moment of its life, as *undisturbed* when it came in those seconds. The rate is a
share of what the model can serve, measured first.

Once with a simulated model, whose latency is the gateway's and the machine's alone, and which is asked often enough for a p99;
once with a real one, which also shares its cores with the load, and brings few samples a load where it is slow.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from gateway_process import gateway_process
from residency_client import Exchange, exchange, post
from residency_status import MODELS, ask, load, unload, wait_for_spare

__all__ = ["RESIDENTS", "measure_disturbance"]

RESIDENTS = {"simulated": 1.5, "smollm2": 0.3}
"""Whose latency is taken → requests a service time. The simulated one serves 64 side by side."""
OTHER = "gemma-3-270m"

_TOKENS = 2
_CLIENTS = 16
_QUIET_S = 4.0
_SETTLE_S = 1.0  # before a load: a request that comes then may live to see it

Span = tuple[float, float]


class _OpenLoop:
    """Sends at scheduled times; ``lives`` has each request's scheduled and end time."""

    def __init__(self, url: str, request: bytes, per_s: float) -> None:
        self.lives: list[Span] = []
        self._per_s = per_s
        self._over = threading.Event()
        self._free: SimpleQueue[Exchange] = SimpleQueue()
        for _ in range(_CLIENTS):
            self._free.put(Exchange(url, request))
        self._pool = ThreadPoolExecutor(_CLIENTS)
        self._thread = threading.Thread(target=self._schedule)
        self._thread.start()

    def _schedule(self) -> None:
        rng = random.Random(1)
        due = time.perf_counter()
        while not self._over.is_set():
            due += rng.expovariate(self._per_s)
            time.sleep(max(0.0, due - time.perf_counter()))
            self._pool.submit(self._send, due)

    def _send(self, due: float) -> None:
        client = self._free.get()
        exchange(client)
        self._free.put(client)
        self.lives.append((due, time.perf_counter()))

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self._pool.shutdown()


def _registry() -> str:
    models = ['{id: simulated, source: "sim:", simulate: {weights: 1MiB, ttft_s: 0.02, tokens_per_s: 100}}']
    models += [
        f"{{id: {model}, source: {str(path)!r}, context: 4096, kv_grant: 64MiB}}" for model, path in MODELS.items()
    ]
    return f"models: [{', '.join(models)}]\n"


def measure_disturbance(*, residents: Sequence[str], loads: int) -> None:
    for resident in residents:
        _measure(resident, loads)


def _measure(resident: str, loads: int) -> None:
    loading = OTHER
    load_spans: list[Span] = []
    quiet_spans: list[Span] = []
    with gateway_process(_registry()) as gateway:
        load(gateway.url, resident)
        service_s = statistics.median(ask(gateway.url, resident, _TOKENS) for _ in range(10))
        per_s = RESIDENTS[resident] / service_s
        body = {"model": resident, "prompt": "The", "max_tokens": _TOKENS, "temperature": 0}
        traffic = _OpenLoop(gateway.url, post(gateway.url, "/v1/completions", body), per_s)
        for _ in range(loads):
            wait_for_spare(gateway.url)
            began = time.perf_counter()
            time.sleep(_QUIET_S)
            quiet_spans.append((began, time.perf_counter() - _SETTLE_S))
            began = time.perf_counter()
            load(gateway.url, loading)
            load_spans.append((began, time.perf_counter()))
            unload(gateway.url, loading)
        traffic.end()
    load_s = statistics.median(end - began for began, end in load_spans)
    print(
        f"{resident}: {service_s:.3f} s an answer, {per_s:.1f} requests/s; {loading} loads {loads} times, {load_s:.2f} s each"
    )
    disturbed = [end - due for due, end in traffic.lives if _meets((due, end), load_spans)]
    undisturbed = [end - due for due, end in traffic.lives if _meets((due, due), quiet_spans)]
    print(f"{'':<14}{'requests':>10}{'p50':>10}{'p99':>10}{'longest':>10}")
    for name, times in (("undisturbed", undisturbed), ("disturbed", disturbed)):
        print(f"{name:<14}{len(times):>10}{statistics.median(times):>8.3f} s{p99(times):>8.3f} s{max(times):>8.3f} s")
    print(f"p99 ratio {p99(disturbed) / p99(undisturbed):.2f} (target: at most 1.5)")


def p99(times: Sequence[float]) -> float:
    return sorted(times)[min(len(times) - 1, int(0.99 * len(times)))]


def _meets(life: Span, spans: Sequence[Span]) -> bool:
    return any(life[0] < end and life[1] > began for began, end in spans)
