"""What the gateway costs: an instant simulated engine behind it, against a bare app that streams the same bytes.

Workloads, each at every number of connections:

- *one*: a streamed answer of one token, which is four events; requests a second
- *events*: a streamed answer of ``tokens`` tokens; events a second
- *short*, *whole*: the same answers unstreamed; requests a second

The target is that of the streams: there the bare app streams the same bytes, an event a chunk. Unstreamed it sends a body that is
ready, while the engine still makes each token. Then *latency*: one client with a pause before each request, so that nothing queues.

The bytes are the gateway's own, recorded before. Rounds of gateway and bare app alternate, so that what else the machine does
meets both; a ratio is the median over rounds. Both servers run all the time, one of them idle.

What is not alike: a gateway's answer is made by a second process, token by token, and crosses a socket. On a machine of two
cores client, gateway and worker share what client and bare app have for themselves; so the CPU time an answer takes in each
process is shown beside, which does not depend on how many cores there are.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from gateway_process import gateway_process
from residency_bare import bare_process
from residency_client import Exchange, Load, closed_loop, exchange, post

__all__ = ["WORKLOADS", "measure_overhead"]

WORKLOADS = ("one", "events", "short", "whole")

_REGISTRY = 'workers: {spare: 0}\nmodels: [{id: instant, source: "sim:", simulate: {weights: 1MiB}}]\n'
_CHAT = "/v1/chat/completions"
_PAUSE_S = 0.004
_WARM_UP_S = 0.3
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class _Side:
    """A server, its processes, and the request of each workload."""

    url: str
    pids: Mapping[str, int]
    requests: Mapping[str, bytes]


@dataclass(frozen=True)
class _Round:
    """One closed loop, and the CPU seconds that each process of the server took for it."""

    load: Load
    cpu_s: Mapping[str, float]


def measure_overhead(
    *, connections: list[int], seconds: float, rounds: int, tokens: int, pauses: int, workloads: Sequence[str]
) -> None:
    bodies = {
        "one": _body(1, stream=True),
        "events": _body(tokens, stream=True),
        "short": _body(1, stream=False),
        "whole": _body(tokens, stream=False),
    }
    with gateway_process(_REGISTRY) as gateway:
        recorded = {name: _record(gateway.url, body) for name, body in bodies.items()}
        answers = {f"/{name}": _pieces(answer) for name, answer in recorded.items()}
        (worker,) = httpx.get(f"{gateway.url}/admin/status").json()["workers"]
        with bare_process(answers) as bare:
            sides = (
                _Side(
                    gateway.url,
                    {"gateway": gateway.pid, "worker": worker["pid"]},
                    {name: post(gateway.url, _CHAT, body) for name, body in bodies.items()},
                ),
                _Side(
                    bare.url,
                    {"bare": bare.pid},
                    {name: post(bare.url, f"/{name}", body) for name, body in bodies.items()},
                ),
            )
            _print_head(tokens, rounds, seconds)
            for name in workloads:
                for count in connections:
                    _throughput(sides, name, count, seconds, rounds)
            _latency(sides, rounds, pauses)


def _print_head(tokens: int, rounds: int, seconds: float) -> None:
    print(f"answers of 1 and of {tokens} tokens, {rounds} rounds of {seconds:g} s; target: ratio >= 0.5")
    print(f"{'workload':<10}{'clients':>8}{'gateway /s':>12}{'bare /s':>12}{'ratio':>8}   CPU ms an answer")


def _throughput(sides: tuple[_Side, _Side], name: str, connections: int, seconds: float, rounds: int) -> None:
    pairs = [tuple(_round(side, name, connections, seconds) for side in sides) for _ in range(rounds)]
    ours, theirs = ([rate(pair[i], name) for pair in pairs] for i in (0, 1))
    ratio = statistics.median(our / their for our, their in zip(ours, theirs, strict=True))
    cpu = ", ".join(_cpu_of([pair[i] for pair in pairs]) for i in (0, 1))
    print(
        f"{name:<10}{connections:>8}{statistics.median(ours):>12.0f}{statistics.median(theirs):>12.0f}{ratio:>8.2f}   {cpu}",
        flush=True,
    )


def rate(run: _Round, workload: str) -> float:
    """Answers a second, events a second for streams."""
    return run.load.events_per_s if workload == "events" else run.load.answers_per_s


def _latency(sides: tuple[_Side, _Side], rounds: int, pauses: int) -> None:
    print(f"\nlatency at low load, medians of {rounds * pauses}; target: at most 1 ms is added")
    for name in ("one", "short"):
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(rounds):
            for side, collected in zip(sides, times, strict=True):
                client = Exchange(side.url, side.requests[name])
                for _ in range(pauses):
                    time.sleep(_PAUSE_S)
                    collected.append(exchange(client))
                client.close()
        ours, theirs = (1000 * statistics.median(collected) for collected in times)
        print(f"{name:<10}gateway {ours:.2f} ms, bare {theirs:.2f} ms, added {ours - theirs:.2f} ms")


def _round(side: _Side, workload: str, connections: int, seconds: float) -> _Round:
    request = side.requests[workload]
    closed_loop(side.url, request, connections=connections, seconds=_WARM_UP_S)
    before = {name: _cpu_s(pid) for name, pid in side.pids.items()}
    load = closed_loop(side.url, request, connections=connections, seconds=seconds)
    return _Round(load, {name: _cpu_s(pid) - before[name] for name, pid in side.pids.items()})


def _cpu_of(rounds: list[_Round]) -> str:
    answers = sum(run.load.answers for run in rounds)
    return ", ".join(
        f"{name} {1000 * sum(run.cpu_s[name] for run in rounds) / answers:.2f}" for name in rounds[0].cpu_s
    )


def _cpu_s(pid: int) -> float:
    """CPU seconds of all threads (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _body(tokens: int, *, stream: bool) -> dict[str, object]:
    messages = [{"role": "user", "content": "How do you do?"}]
    return {"model": "instant", "messages": messages, "max_tokens": tokens, "stream": stream}


def _record(url: str, body: dict[str, object]) -> bytes:
    answer = httpx.post(url + _CHAT, json=body, timeout=30)
    if answer.status_code != 200:
        raise SystemExit(f"the gateway answered {answer.status_code}: {answer.text}")
    return answer.content


def _pieces(answer: bytes) -> list[bytes]:
    """An event a piece; anything else in one."""
    if not answer.startswith(b"data: "):
        return [answer]
    return [event + b"\n\n" for event in answer.split(b"\n\n") if event]
