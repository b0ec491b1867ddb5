"""Products with K-quants and the small operations, by back end and instruction set.

    python benchmarks/kernels.py [--rows N] [--columns N] [--threads N]

Times are the best of several, in microseconds; rates are weights a second, each counted once for every row of activations.
Matrices rotate so that they come from memory, as in a model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import mlx.core as mx
import numpy as np

from engines.gguf.kernels.blas import BlasBackend
from engines.gguf.kernels.cpu import Extension, extension, why_missing
from engines.gguf.quants import QUANT_TYPES, QuantType

WIDTHS = (1, 2, 8, 64, 512)
ROTATED_BYTES = 96 << 20  # beyond the caches
CALL_PRODUCTS = 1_000_000_000  # of one timed series of calls, about

Multiply = Callable[[mx.array, mx.array], mx.array]


def best_time(work: Callable[[int], mx.array], calls: int, rounds: int = 5) -> float:
    """Seconds a call."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        mx.eval([work(call) for call in range(calls)])
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def random_blocks(quant: QuantType, rows: int, columns: int, count: int) -> list[mx.array]:
    """Finite weights are not needed to time a product, but subnormal halves are to be avoided: no byte is above 63."""
    generator = np.random.default_rng(0)
    shape = (rows, quant.row_bytes(columns))
    return [mx.array(generator.integers(32, 64, shape, dtype=np.uint8)) for _ in range(count)]


def products(compiled: Extension | None, rows: int, columns: int) -> None:
    blas = BlasBackend()
    print(f"{rows} x {columns}; per call in µs (G weights/s)")
    print(f"{'type':6} {'kernels':12}" + "".join(f"{f'{m} rows':>18}" for m in WIDTHS))
    for quant in QUANT_TYPES:
        matrices = random_blocks(quant, rows, columns, max(2, ROTATED_BYTES // (rows * quant.row_bytes(columns))))
        if compiled is not None:
            for variant in compiled.variants():
                compiled.choose_variant(variant)
                print_row(quant, variant, matrices, columns, partial(compiled_product, compiled, quant))
            compiled.choose_variant(compiled.variants()[0])
        print_row(quant, "blas", matrices, columns, partial(blas_product, blas, quant))
    blas.close()


def compiled_product(compiled: Extension, quant: QuantType, x: mx.array, blocks: mx.array) -> mx.array:
    return compiled.product(x, blocks, quant.ggml_id)


def blas_product(blas: BlasBackend, quant: QuantType, x: mx.array, blocks: mx.array) -> mx.array:
    return blas.multiply(x, blocks, quant, True)


def print_row(quant: QuantType, name: str, matrices: list[mx.array], columns: int, multiply: Multiply) -> None:
    cells = []
    for m in WIDTHS:
        x = mx.array(np.random.default_rng(1).standard_normal((m, columns)).astype(np.float32))
        mx.eval(x)
        products = matrices[0].shape[0] * columns * m

        def work(call: int, x: mx.array = x) -> mx.array:
            return multiply(x, matrices[call % len(matrices)])

        seconds = best_time(work, max(1, min(len(matrices), CALL_PRODUCTS // products)), rounds=3)
        cells.append(f"{seconds * 1e6:10.0f} ({products / seconds / 1e9:5.1f})")
    print(f"{quant.name:6} {name:12}" + "".join(cells), flush=True)


def small_operations(compiled: Extension) -> None:
    """At the shapes of SmolLM2's decoding."""
    x, weight = mx.random.normal((1, 1, 576)), mx.random.normal((576,))
    q, k = mx.random.normal((1, 9, 1, 64)), mx.random.normal((1, 3, 256, 64))
    logits = mx.random.normal((8, 262_144))
    mx.eval(x, weight, q, k, logits)
    pairs: dict[str, tuple[Callable[[int], mx.array], Callable[[int], mx.array]]] = {
        "RMS norm": (lambda _: compiled.rms_norm(x, weight, 1e-5), lambda _: mx.fast.rms_norm(x, weight, 1e-5)),
        "rotary embedding": (
            lambda call: compiled.rope(q, 64, False, 1e4, 1.0, call),
            lambda call: mx.fast.rope(q, 64, traditional=False, base=1e4, scale=1.0, offset=call),
        ),
        "attention, 256 keys": (
            lambda _: compiled.attention(q, k, k, 0.125, False),
            lambda _: mx.fast.scaled_dot_product_attention(q, k, k, scale=0.125),
        ),
        "log-sum-exp, 8 x 262144": (
            lambda _: compiled.log_sum_exp(logits),
            lambda _: mx.logsumexp(logits, axis=-1, keepdims=True),
        ),
    }
    print(f"\n{'operation':24} {'compiled':>10} {'MLX':>10}   µs")
    for name, (ours, theirs) in pairs.items():
        calls = 5 if "262144" in name else 200
        print(f"{name:24} {best_time(ours, calls) * 1e6:10.1f} {best_time(theirs, calls) * 1e6:10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1536)
    parser.add_argument("--columns", type=int, default=768)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    mx.set_default_device(mx.cpu)
    compiled = extension()
    if compiled is None:
        print(why_missing())
    elif arguments.threads:
        compiled.set_threads(arguments.threads)
    products(compiled, arguments.rows, arguments.columns)
    if compiled is not None:
        small_operations(compiled)


if __name__ == "__main__":
    main()
