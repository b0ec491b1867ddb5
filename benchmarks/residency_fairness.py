"""Steady traffic on one model, and now and then a request for another; room for one.

Simulated models, and times scaled down by the registry's own knobs: B is asked for every 12 s (for a minute), ``fairness_wait_s``
is 2 (for 10), ``drain_timeout_s`` 12 (for 60). An answer of A lasts half a second, a load as long and its
process's start.

- p50 of A over the whole time, against A alone: at most 2 ×
- each wait of B, from its request to its first token: at most ``fairness_wait_s`` + A's longest answer (the drain) + B's longest
  load alone
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import dataclass, field

from gateway_process import gateway_process
from residency_client import Exchange, exchange, post
from residency_status import load, unload

__all__ = ["measure_fairness"]

FAIRNESS_WAIT_S = 2.0
DRAIN_TIMEOUT_S = 12.0
EVERY_S = 12.0
LOAD_S = 0.5
_CLIENTS = 4
_TOKENS = 25
_TOKENS_PER_S = 50
_ALONE_S = 8.0
_FIRST_TOKEN_S = 1 / _TOKENS_PER_S

_REGISTRY = f"""
workers: {{spare: 0}}
memory: {{budget: 3GiB, device: 8GiB}}
defaults: {{fairness_wait_s: {FAIRNESS_WAIT_S}, drain_timeout_s: {DRAIN_TIMEOUT_S}}}
models:
  - {{id: a, source: "sim:", simulate: {{weights: 2GiB, load_s: {LOAD_S}, tokens_per_s: {_TOKENS_PER_S}}}}}
  - {{id: b, source: "sim:", simulate: {{weights: 2GiB, load_s: {LOAD_S}, tokens_per_s: {_TOKENS_PER_S}}}}}
"""


@dataclass
class _Steady:
    """Clients of A that ask again as soon as they are answered."""

    url: str
    times: list[float] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(_CLIENTS)]
        for thread in threads:
            thread.start()
        return threads

    def _ask(self, number: int) -> None:
        client = Exchange(self.url, post(self.url, "/v1/completions", _body("a", _TOKENS)))
        time.sleep(number * _TOKENS / _TOKENS_PER_S / _CLIENTS)  # so that A is never idle
        while not self.over.is_set():
            self.times.append(exchange(client))
        client.close()


def measure_fairness(*, requests: int) -> None:
    with gateway_process(_REGISTRY) as gateway:
        load_s = max(_load_and_unload(gateway.url) for _ in range(3))
        load(gateway.url, "a")
        steady = _Steady(gateway.url)
        threads = steady.run()
        time.sleep(_ALONE_S)
        alone, steady.times = steady.times, []
        waits = []
        for _ in range(requests):
            client = Exchange(gateway.url, post(gateway.url, "/v1/completions", _body("b", 1)))
            waits.append(exchange(client))
            client.close()
            time.sleep(max(0.0, EVERY_S - waits[-1]))
        shared = steady.times
        steady.over.set()
        for thread in threads:
            thread.join()
    before, after = statistics.median(alone), statistics.median(shared)
    bound = FAIRNESS_WAIT_S + max(alone) + load_s + _FIRST_TOKEN_S
    print(
        f"fairness_wait_s {FAIRNESS_WAIT_S:g}, drain_timeout_s {DRAIN_TIMEOUT_S:g}, B every {EVERY_S:g} s, {requests} times"
    )
    print(f"A's p50 alone {before:.2f} s, shared {after:.2f} s, ratio {after / before:.2f} (target: at most 2)")
    print(f"A's longest answer while shared: {max(shared):.2f} s")
    print(f"B waited {', '.join(f'{wait:.2f}' for wait in waits)} s (target: at most {bound:.2f})")


def _load_and_unload(url: str) -> float:
    """Seconds of B's load on an empty device, its process's start included."""
    seconds = load(url, "b")
    unload(url, "b")
    return seconds


def _body(model: str, tokens: int) -> dict[str, object]:
    return {"model": model, "prompt": "The", "max_tokens": tokens}
