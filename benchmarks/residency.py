"""Residency, measured; ratios within one run.

::

    .venv/bin/python benchmarks/residency.py [PART ...] [options]

part              what                                                                       module
================  =========================================================================  =========================
``disturbance``   a resident model's p99 while another real model loads                      ``residency_disturbance``
``overhead``      the gateway with an instant simulated engine against a bare app            ``residency_overhead``
``swap``          A to B to A on the real models, against llama-server and mlx-lm's import   ``residency_swap``
``fairness``      a rarely asked model beside a busy one                                     ``residency_fairness``
``policies``      eviction policies on traces, on a virtual clock                            ``residency_policies``
================  =========================================================================  =========================

Without a part all of them run. Needs Linux (``/proc``), and both real models for ``disturbance`` and ``swap``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from residency_disturbance import RESIDENTS, measure_disturbance
from residency_fairness import measure_fairness
from residency_overhead import WORKLOADS, measure_overhead
from residency_policies import measure_policies
from residency_swap import measure_swap

PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "disturbance": lambda options: measure_disturbance(residents=options.residents, loads=options.loads),
    "overhead": lambda options: measure_overhead(
        connections=options.connections,
        seconds=options.seconds,
        rounds=options.rounds,
        tokens=options.tokens,
        pauses=options.pauses,
        workloads=options.workloads,
    ),
    "swap": lambda options: measure_swap(runs=options.runs, llama_server=options.llama_server),
    "fairness": lambda options: measure_fairness(requests=options.requests),
    "policies": lambda options: measure_policies(seeds=options.seeds),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Innkeeper's residency benchmark")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all without one")
    parser.add_argument("--loads", type=int, default=30, help="disturbance: loads of the other model")
    parser.add_argument("--residents", nargs="+", choices=list(RESIDENTS), default=list(RESIDENTS), help="disturbance")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16, 64], help="overhead")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS, help="overhead")
    parser.add_argument("--seconds", type=float, default=2.0, help="overhead: of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="overhead: measurements of each kind")
    parser.add_argument("--tokens", type=int, default=200, help="overhead: of a long answer")
    parser.add_argument("--pauses", type=int, default=200, help="overhead: requests of the latency, each round")
    parser.add_argument("--runs", type=int, default=5, help="swap: of each model")
    parser.add_argument("--llama-server", type=Path, metavar="BINARY", help="swap: the llama-server to compare with")
    parser.add_argument("--requests", type=int, default=5, help="fairness: of the rarely asked model")
    parser.add_argument("--seeds", type=int, default=5, help="policies: of each trace")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    for part in options.parts or PARTS:
        print(f"--- {part}", flush=True)
        PARTS[part](options)
        print(flush=True)


if __name__ == "__main__":
    main()
