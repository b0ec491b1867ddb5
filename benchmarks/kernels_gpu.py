"""K-quant products on an NVIDIA GPU beside a device copy, MLX's affine 4-bit product and a dense float16 one, in one run.

    python benchmarks/kernels_gpu.py [--part host|products|model] [--quick]

``host``: what a call costs the host. ``products``: the product of a 14336 x 4096 matrix for every quant type and several
numbers of rows; each product takes its activations from the one before, and the weights are copies that together pass the L2
cache several times over. ``model``: a whole random Llama of 8B's shape with the mix of types that Q4_K_M files have, against
the stock mlx-lm model at affine 4 bits: decode at batch 1 and 32, prefill of 2048 tokens, in bfloat16. Without a part, all of
them. Each figure is printed as soon as it is there.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import mlx.core as mx
from mlx.nn.layers.quantized import quantize
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf.fused import fuse
from engines.gguf.fused_block import fuse_blocks
from engines.gguf.kernels import backend_name
from engines.gguf.layers import KQuantEmbedding, KQuantLinear
from engines.gguf.qmatmul import qmatmul
from engines.gguf.quants import QUANT_TYPES, QuantType, quant_type

ROWS, COLUMNS = 14336, 4096
ROTATED_BYTES = 400_000_000  # of weights, several times an L2 cache
# What a factor of 1 makes of random codes, about.
SPREAD = {
    "Q2_K": 20.0,
    "Q3_K": 42.0,
    "Q4_K": 300.0,
    "Q5_K": 600.0,
    "Q6_K": 1400.0,
    "Q4_0": 4.6,
    "Q4_1": 8.0,
    "Q5_0": 9.2,
    "Q5_1": 16.0,
    "Q8_0": 74.0,
    "IQ4_NL": 67.0,
    "IQ4_XS": 1245.0,
    "MXFP4": 5.6,
}
FACTORS_AT = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "Q4_0": (0,),
    "Q5_0": (0,),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}  # else 0 and 2
EXPONENT = 120  # of MXFP4: weights are some 2 ** -6
CHAIN = 192  # products an evaluation at least, so that what one costs by itself disappears
VOCABULARY, LAYERS = 128256, 32


def random_blocks(quant: QuantType, rows: int, columns: int, scale: float = 1 / 64) -> mx.array:
    """Made on the device: random codes under random factors, weights of about the standard deviation ``scale``."""
    count = rows * columns // quant.block_size
    shorts = (quant.block_bytes + 1) // 2
    raw = (
        mx.random.randint(0, 1 << 16, (count, shorts), mx.uint32)
        .astype(mx.uint16)
        .view(mx.uint8)[:, : quant.block_bytes]
    )
    if quant.name == "MXFP4":
        raw = mx.concatenate([mx.full((count, 1), EXPONENT, mx.uint8), raw[:, 1:]], axis=1)
    for at in FACTORS_AT.get(quant.name, (0, 2)):
        factor = mx.random.uniform(0.5, 1.5, (count, 1)) * mx.where(mx.random.bernoulli(0.5, (count, 1)), 1, -1)
        half = (factor * (scale / SPREAD[quant.name])).astype(mx.float16).view(mx.uint8)
        raw = mx.concatenate([raw[:, :at], half, raw[:, at + 2 :]], axis=1)
    blocks = mx.contiguous(raw.reshape(rows, -1))
    mx.eval(blocks)
    return blocks


def affine_product(x: mx.array, packed: Any) -> mx.array:
    weights, scales, biases = packed
    return mx.quantized_matmul(x, weights, scales, biases, transpose=True, group_size=64, bits=4)


def seconds(work: Callable[[], mx.array], repeats: int = 5) -> float:
    """Median time of evaluating what ``work`` builds, after one run that warms up. Building is not counted."""
    mx.eval(work())
    times = []
    for _ in range(repeats):
        out = work()
        mx.synchronize()
        start = time.perf_counter()
        mx.eval(out)
        mx.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def chained(multiply: Callable[[mx.array, Any], mx.array], weights: Sequence[Any], x: mx.array) -> float:
    """Seconds of one product, each waiting for the one before."""
    m = x.shape[0]
    rotation = list(weights) * -(-(CHAIN if m <= 128 else CHAIN // 8) // len(weights))

    def work() -> mx.array:
        at = x
        for each in rotation:
            at = multiply(at, each).reshape(-1)[: m * COLUMNS].reshape(m, COLUMNS)
        return at

    return seconds(work) / len(rotation)


def in_turn(multiply: Callable[[mx.array, Any], mx.array], pairs: Sequence[tuple[Any, ...]], x: mx.array) -> float:
    """Seconds of one product of the mean of two shapes, ROWS x COLUMNS and COLUMNS x ROWS, each waiting for the one before: a
    chain without the slices that :func:`chained` needs, which are a copy each."""
    rotation = list(pairs) * -(-CHAIN // (2 * len(pairs)))

    def work() -> mx.array:
        at = x
        for up, down in rotation:
            at = multiply(multiply(at, up), down)
        return at

    return seconds(work) / (2 * len(rotation))


def copy_bandwidth() -> float:
    """Bytes read and written a second by MLX's own elementwise copies of 1 GiB, the best of two ways."""
    source = mx.random.randint(0, 1 << 30, (1 << 28,), mx.int32)
    halves = source.view(mx.bfloat16)
    mx.eval(source, halves)
    ways: list[Callable[[], mx.array]] = [lambda: source + 1, lambda: -halves]
    return 2 * source.nbytes / min(seconds(way) for way in ways)


def peers(counts: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Seconds of an affine 4-bit and of a dense float16 product, by rows of activations."""
    dense = [(mx.random.normal((ROWS, COLUMNS)) / 64).astype(mx.float16) for _ in range(4)]
    affine = [mx.quantize(each, 64, 4) for each in dense for _ in range(3)]
    mx.eval(dense, affine)
    nbytes, flops = sum(each.nbytes for each in affine[0]), 2 * ROWS * COLUMNS
    times = {}
    for m in counts:
        x = mx.random.normal((m, COLUMNS)).astype(mx.float16)
        packed, fast = chained(affine_product, affine, x), chained(lambda x, w: x @ w.T, dense, x)
        times[m] = packed, fast
        print(
            f"m={m:<5} dense float16 {fast * 1e6:7.1f} us {m * flops / fast / 1e12:6.1f} TFLOP/s | "
            f"affine 4-bit {packed * 1e6:8.1f} us {nbytes / packed / 1e9:6.0f} GB/s {m * flops / packed / 1e12:6.1f} TFLOP/s",
            flush=True,
        )
    return times


def products(
    copy: float, times: dict[int, tuple[float, float]], counts: Sequence[int], names: Sequence[str], dtype: mx.Dtype
) -> None:
    """``copy``: bytes a second of the device copy; ``times``: see :func:`peers`."""
    flops = 2 * ROWS * COLUMNS
    print(f"{dtype}: type, m, us, GB/s, of copy, TFLOP/s, times affine, of dense, times m=1")
    for name in names:
        quant = quant_type(name)
        nbytes = ROWS * quant.row_bytes(COLUMNS)
        weights = [random_blocks(quant, ROWS, COLUMNS) for _ in range(-(-ROTATED_BYTES // nbytes))]
        single = 0.0
        for m in counts:
            x = mx.random.normal((m, COLUMNS)).astype(dtype)
            took = chained(partial(_product, quant), weights, x)
            single = single or took
            packed, fast = times[m]
            print(
                f"{name} m={m:<5} {took * 1e6:7.1f} us {nbytes / took / 1e9:6.0f} GB/s {nbytes / took / copy:5.0%} "
                f"{m * flops / took / 1e12:6.1f} TFLOP/s  {packed / took:5.2f}x affine  {fast / took:5.0%} of dense  "
                f"{took / single:5.2f}",
                flush=True,
            )
        del weights


def products_in_turn() -> None:
    """The same for both shapes of an MLP in turn, few rows."""
    counts = (1, 8, 32)
    xs = {m: mx.random.normal((m, COLUMNS)).astype(mx.float16) for m in counts}
    shapes = ((ROWS, COLUMNS), (COLUMNS, ROWS))
    dense = [tuple((mx.random.normal(shape) / 64).astype(mx.float16) for shape in shapes) for _ in range(2)]
    affine = [tuple(mx.quantize(each, 64, 4) for each in pair) for pair in dense * 3]
    mx.eval(dense, affine)
    fast = {m: in_turn(lambda x, w: x @ w.T, dense, x) for m, x in xs.items()}
    packed = {m: in_turn(affine_product, affine, x) for m, x in xs.items()}
    print(f"float16, {ROWS} x {COLUMNS} and {COLUMNS} x {ROWS} in turn, mean of the two")
    for m in counts:
        print(f"m={m:<5} dense float16 {fast[m] * 1e6:7.1f} us | affine 4-bit {packed[m] * 1e6:7.1f} us", flush=True)
    for quant in map(quant_type, ("Q4_K", "Q6_K")):
        nbytes = ROWS * quant.row_bytes(COLUMNS)
        count = -(-ROTATED_BYTES // (2 * nbytes))
        pairs = [tuple(random_blocks(quant, *shape) for shape in shapes) for _ in range(count)]
        for m, x in xs.items():
            took = in_turn(partial(_product, quant), pairs, x)
            print(
                f"{quant.name} m={m:<5} {took * 1e6:7.1f} us {nbytes / took / 1e9:6.0f} GB/s {packed[m] / took:5.2f}x affine "
                f"{fast[m] / took:5.0%} of dense",
                flush=True,
            )


def _product(quant: QuantType, x: mx.array, blocks: mx.array) -> mx.array:
    return qmatmul(x, blocks, quant)


def more_bits(layer: int) -> bool:
    """Layers whose value and down projections a Q4_K_M file keeps at Q6_K."""
    return layer < LAYERS // 8 or layer >= 7 * LAYERS // 8 or (layer - LAYERS // 8) % 3 == 2


def stock_model() -> Any:
    arguments = llama.ModelArgs(
        model_type="llama",
        hidden_size=COLUMNS,
        num_hidden_layers=LAYERS,
        intermediate_size=ROWS,
        num_attention_heads=32,
        num_key_value_heads=8,
        rms_norm_eps=1e-5,
        vocab_size=VOCABULARY,
        rope_theta=500000.0,
        tie_word_embeddings=False,
    )
    model: Any = llama.Model(arguments)
    model.set_dtype(mx.bfloat16)
    return model


def affine_model() -> Any:
    """The stock model at 4 bits with random packed weights: dense ones, four times the size, are never computed."""
    model = stock_model()
    quantize(model, 64, 4)
    for _, module in model.named_modules():
        if "scales" in module:
            module.weight = mx.random.randint(0, 1 << 31, module.weight.shape, mx.uint32)
            module.scales = mx.random.uniform(0.002, 0.006, module.scales.shape).astype(mx.bfloat16)
            module.biases = -8 * module.scales
            mx.eval(module.parameters())
    mx.eval(model.parameters())
    return model


def kquant_model() -> Any:
    model = stock_model()
    q4, q6 = quant_type("Q4_K"), quant_type("Q6_K")
    inner = model.model
    inner.embed_tokens = KQuantEmbedding(random_blocks(q4, VOCABULARY, COLUMNS, 1.0), q4, mx.bfloat16)
    model.lm_head = KQuantLinear(random_blocks(q6, VOCABULARY, COLUMNS), q6, head=True)

    def leaf(rows: int, columns: int, quant: QuantType) -> KQuantLinear:
        return KQuantLinear(random_blocks(quant, rows, columns), quant)

    for index, layer in enumerate(inner.layers):
        better = q6 if more_bits(index) else q4
        layer.self_attn.q_proj = leaf(COLUMNS, COLUMNS, q4)
        layer.self_attn.k_proj = leaf(COLUMNS // 4, COLUMNS, q4)
        layer.self_attn.v_proj = leaf(COLUMNS // 4, COLUMNS, better)
        layer.self_attn.o_proj = leaf(COLUMNS, COLUMNS, q4)
        layer.mlp.gate_proj = leaf(ROWS, COLUMNS, q4)
        layer.mlp.up_proj = leaf(ROWS, COLUMNS, q4)
        layer.mlp.down_proj = leaf(COLUMNS, ROWS, better)
    fuse(model, "silu")
    fuse_blocks(model)
    mx.eval(model.parameters())
    return model


def decode_rate(model: Any, batch: int, steps: int) -> tuple[float, float]:
    """Tokens a second of all rows together, the next step dispatched before the last is read, as mlx-lm does; and the seconds
    of a step that Python spends on building its graph."""
    cache = make_prompt_cache(model)
    y = mx.argmax(model(mx.random.randint(0, VOCABULARY, (batch, 128)), cache=cache)[:, -1:], axis=-1)
    mx.eval(y)

    def run(count: int) -> tuple[float, float]:
        nonlocal y
        building = 0.0
        start = time.perf_counter()
        for _ in range(count):
            began = time.perf_counter()
            following = mx.argmax(model(y, cache=cache)[:, -1:], axis=-1)
            building += time.perf_counter() - began
            mx.async_eval(following)  # type: ignore[no-untyped-call]
            mx.eval(y)
            y = following
        mx.eval(y)
        return time.perf_counter() - start, building / count

    run(8)
    took, building = min(run(steps) for _ in range(3))
    return batch * steps / took, building


def prefill_rate(model: Any, tokens: int = 2048) -> float:
    def run() -> float:
        cache = make_prompt_cache(model)
        start = time.perf_counter()
        model(mx.random.randint(0, VOCABULARY, (1, tokens)), cache=cache)
        mx.eval([each.state for each in cache])
        return time.perf_counter() - start

    run()
    return tokens / min(run() for _ in range(3))


def models() -> None:
    stock: dict[str, float] = {}

    def tell(figure: str, rate: float, more: str = "") -> None:
        against = f" | {rate / stock[figure]:.2f}x affine 4-bit" if figure in stock else ""
        stock.setdefault(figure, rate)
        print(f"8B {name:<12} {figure:<17} {rate:8.1f} tok/s{against}{more}", flush=True)

    builders: tuple[tuple[str, Callable[[], Any]], ...] = (("affine 4-bit", affine_model), ("K-quants", kquant_model))
    for name, build in builders:
        mx.reset_peak_memory()
        start = time.perf_counter()
        model = build()
        took, memory = time.perf_counter() - start, mx.get_active_memory()
        print(f"8B {name:<12} made in {took:.1f} s, {memory / 1e9:.2f} GB", flush=True)
        for batch, steps in ((1, 48), (32, 24)):
            rate, building = decode_rate(model, batch, steps)
            tell(f"decode, batch {batch}", rate, f", graph built in {building * 1e3:.2f} ms a step")
        tell("prefill 2048", prefill_rate(model), f", peak {mx.get_peak_memory() / 1e9:.2f} GB")
        del model
        mx.clear_cache()


def host_costs(count: int = 400) -> None:
    """Microseconds of the host a call: building it, and dispatching it, which the device, given next to nothing to do, does not
    hold up."""
    side = 256
    x = mx.random.normal((1, side)).astype(mx.float16)
    dense = (mx.random.normal((side, side)) / 16).astype(mx.float16)
    q4 = quant_type("Q4_K")
    calls: dict[str, Callable[[], mx.array]] = {
        "x + x": lambda: x + x,
        "dense float16": lambda: x @ dense.T,
        "affine 4-bit": partial(affine_product, x, mx.quantize(dense, 64, 4)),
        "Q4_K": partial(_product, q4, x, random_blocks(q4, side, side)),
    }
    for name, call in calls.items():
        mx.eval(call())
        best = [math.inf, math.inf]
        for _ in range(5):
            mx.synchronize()
            times = [time.perf_counter()]
            made = [call() for _ in range(count)]
            times.append(time.perf_counter())
            mx.eval(made)
            times.append(time.perf_counter())
            best = [min(best[i], (times[i + 1] - times[i]) / count * 1e6) for i in range(2)]
        print(f"host, {name:<14} built in {best[0]:5.2f} us, dispatched in {best[1]:5.2f} us", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=["host", "products", "model"], help="all by default")
    parser.add_argument("--quick", action="store_true", help="only products of Q4_K and Q6_K, in float16")
    options = parser.parse_args()
    parts = options.part or ["host", "products", "model"]
    device = mx.device_info().get("device_name", "GPU")
    print(f"{device}, MLX {version('mlx')}, kernels: {backend_name()}", flush=True)
    if "host" in parts:
        host_costs()
    if "products" in parts:
        copy = copy_bandwidth()
        print(f"device copy: {copy / 1e9:.0f} GB/s (read and written)", flush=True)
        counts = (1, 8, 32, 512) if options.quick else (1, 8, 32, 64, 128, 512, 2048)
        times = peers(counts)
        products(copy, times, counts, ["Q4_K", "Q6_K"], mx.float16)
        products_in_turn()
    if "model" in parts:
        models()
    if "products" in parts and not options.quick:
        products(copy, times, (1, 8, 32, 512), ["Q4_K", "Q6_K"], mx.bfloat16)
        names = [quant.name for quant in QUANT_TYPES if quant.name in SPREAD and quant.name not in ("Q4_K", "Q6_K")]
        products(copy, times, (1, 8, 32, 512), names, mx.float16)


if __name__ == "__main__":
    main()
