"""The CUDA kernels on a CPU, thread by thread: what of them is right without a GPU. ``emulated_cuda.h`` stands for the device."""

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engines.gguf.kernels.cuda.tile import Tile, gated_tile, tile_for
from engines.gguf.quants import QuantType, quant_type
from tests.engines.gguf.helpers_blocks import random_blocks
from tests.engines.gguf.kernels.helpers_emulated import aligned, bfloat16_bits, bfloat16_values, compiled

HALF, BFLOAT16 = "__half", "__nv_bfloat16"
ROWS = 203
# Rows of activations, whether they are bfloat16.
CASES = ((1, True), (5, False), (20, True))
# Read directly, through the ring, of 32 weights; looked up in 16 steps, whose blocks begin anywhere; by eights.
USUAL, LOOKED_UP = ("Q4_K", "Q6_K", "Q5_0"), ("IQ4_NL", "IQ4_XS", "MXFP4", "IQ3_S", "NVFP4")
KERNELS = [
    (quant_type(name), kind, m, narrow)
    for name in (*USUAL, *LOOKED_UP)
    for kind in ("product", "gated", "joined")
    for m, narrow in CASES
    if name in USUAL or kind == "product"
]
SPLIT = (100, 5, 98)  # ROWS, as three matrices


def columns_of(quant: QuantType) -> int:
    """No whole units of 256, where the type allows it."""
    return 768 if quant.block_size == 256 else 704


def tile_of(quant: QuantType, kind: str, m: int, narrow: bool) -> Tile:
    choose = gated_tile if kind == "gated" else tile_for
    # As for a large matrix, which takes warps with several tiles of rows.
    return choose(quant, 14336, columns_of(quant), m, narrow=narrow)


def dtypes(tile: Tile, narrow: bool) -> tuple[str, str, float]:
    """Of activations as the kernel takes them, of the answer; and the factor."""
    if not narrow:
        return HALF, HALF, 1.0
    return (BFLOAT16, BFLOAT16, 1.0) if tile.narrowed else (HALF, BFLOAT16, 16.0)


def function(name: str, quant: QuantType, kind: str, m: int, narrow: bool) -> str:
    tile = tile_of(quant, kind, m, narrow)
    x, out, factor = dtypes(tile, narrow)
    width = columns_of(quant)
    arguments = f"{{}}, m, {width}, {{}}, {quant.row_bytes(width)}, {factor}f"
    if kind == "product":
        tiles = -(-ROWS // tile.height)
        call = f"kq_product<kq_{quant.name}, {tile.source}>({arguments.format('x, first, out', ROWS)})"
    elif kind == "gated":
        tiles = -(-ROWS // (tile.height // 2))
        call = f"kq_gated<kq_{quant.name}, {tile.source}, kq_silu>({arguments.format('x, first, second, out', ROWS)})"
    else:
        tiles = sum(-(-rows // tile.height) for rows in SPLIT)
        at = [sum(SPLIT[:i]) for i in range(3)]
        blocks = ", ".join(f"first + {each * quant.row_bytes(width)}" for each in at)
        outs = ", ".join(f"out + m * {each}" for each in at)
        arrays, rows = f"x, {blocks}, {outs}", ", ".join(map(str, SPLIT))
        call = f"kq_joined<kq_{quant.name}, {tile.source}>({arguments.format(arrays, rows)})"
    columns = -(-m // (8 * tile.columns))
    return (
        f'extern "C" void {name}(const {x}* x, const unsigned char* first, const unsigned char* second, {out}* out, int m) '
        f"{{ run_grid({tiles}, {columns}, {tile.threads}, [=] {{ {call}; }}); }}\n"
    )


def label(quant: QuantType, kind: str, m: int, narrow: bool) -> str:
    return f"{kind}_{quant.name}_{m}_{int(narrow)}"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = "".join(function(label(*each), *each) for each in KERNELS)
    return compiled(text, tmp_path_factory.mktemp("emulated"))


@pytest.mark.parametrize(("quant", "kind", "m", "narrow"), KERNELS, ids=[label(*each) for each in KERNELS])
def test_kernel_thread_by_thread(library: ctypes.CDLL, quant: QuantType, kind: str, m: int, narrow: bool) -> None:
    taken, given, factor = dtypes(tile_of(quant, kind, m, narrow), narrow)
    raws = [aligned(random_blocks(quant, ROWS, columns_of(quant), seed=seed, scale=0.05)) for seed in (1, 2)]
    weights = [quant.dequantize_numpy(raw).astype(np.float64) for raw in raws]
    drawn = np.random.default_rng(3).standard_normal((m, columns_of(quant)))
    drawn = bfloat16_values(bfloat16_bits(drawn)) if narrow else drawn.astype(np.float16).astype(np.float64)
    x: NDArray[Any] = (
        aligned(bfloat16_bits(drawn)) if taken == BFLOAT16 else aligned((drawn / factor).astype(np.float16))
    )
    out = aligned(np.full(m * ROWS, 0x7FFF, np.uint16))  # not a number
    pointers = [ctypes.c_void_p(each.ctypes.data) for each in (x, *raws, out)]
    library[label(quant, kind, m, narrow)](*pointers, m)
    got = bfloat16_values(out) if given == BFLOAT16 else out.view(np.float16).astype(np.float64)
    expected = drawn @ weights[0].T
    if kind == "gated":
        expected = expected / (1 + np.exp(-expected)) * (drawn @ weights[1].T)
    elif kind == "joined":
        parts = np.split(expected, np.cumsum(SPLIT)[:-1], axis=1)
        expected = np.concatenate([part.reshape(-1) for part in parts])
    error = np.linalg.norm(got - expected.reshape(-1)) / np.linalg.norm(expected)
    assert error < (4e-3 if narrow else 2e-3)
