"""Attention of one token a row over a batch's cache on a CPU, thread by thread."""

import ctypes

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.engines.gguf.kernels.helpers_emulated import aligned, compiled

# Features of a head, heads, kv heads, queries a thread block, warps.
SHAPES = ((128, 8, 2, 4, 2), (64, 6, 2, 2, 4), (96, 3, 1, 4, 1), (256, 4, 1, 2, 1))
ROWS, ROOM = 3, 40

Floats = NDArray[np.float64]


def label(shape: tuple[int, ...], split: bool) -> str:
    return "attend_" + "_".join(map(str, shape)) + f"_{int(split)}"


def attend(shape: tuple[int, ...], split: bool) -> str:
    features, heads, kv_heads, queries, warps = shape
    blocks = ROWS * kv_heads * -(-(heads // kv_heads) // queries)
    return (
        f'extern "C" void {label(shape, split)}(const __half* q, const __half* k, const __half* v, const int* left, '
        "const int* used, __half* out, float* parts, int splits) "
        f"{{ run_grid(splits, {blocks}, {32 * warps}, [=] {{ "
        f"kq_attend<__half, {features}, {queries}, {warps}, {str(split).lower()}>"
        f"(q, k, v, left, used, out, parts, {heads}, {kv_heads}, {ROOM}, splits, {features**-0.5}f); }}); "
        + (
            f"run_grid({ROWS * heads}, 1, 32, [=] {{ kq_attend_merge<__half, {features}>(parts, out, splits); }}); "
            if split
            else ""
        )
        + "}\n"
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = "".join(attend(shape, split) for shape in SHAPES for split in (False, True))
    return compiled(text, tmp_path_factory.mktemp("attention"))


def pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def expected(q: Floats, k: Floats, v: Floats, left: NDArray[np.int32], used: int) -> Floats:
    rows, heads, features = q.shape
    group = heads // k.shape[1]
    out = np.zeros_like(q)
    for row in range(rows):
        for head in range(heads):
            keys, values = (each[row, head // group, left[row] : used] for each in (k, v))
            logits = keys @ q[row, head] * features**-0.5
            weights = np.exp(logits - logits.max())
            out[row, head] = weights @ values / weights.sum()
    return out


@pytest.mark.parametrize("splits", [1, 2, 5])
@pytest.mark.parametrize("used", [1, 19, ROOM])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "_".join(map(str, shape)))
def test_attend_is_softmax_of_what_is_not_padding(
    library: ctypes.CDLL, shape: tuple[int, ...], used: int, splits: int
) -> None:
    features, heads, kv_heads, _, _ = shape
    draw = np.random.default_rng(7).standard_normal
    q = aligned((2 * draw((ROWS, heads, features))).astype(np.float16))
    k, v = (aligned(draw((ROWS, kv_heads, ROOM, features)).astype(np.float16)) for _ in range(2))
    k[:, :, used:] = v[:, :, used:] = np.nan  # room that nothing has been written to
    left = np.array([0, used // 2, used - 1], np.int32)
    for row, padding in enumerate(left):
        k[row, :, :padding] = v[row, :, :padding] = np.nan
    out = np.full((ROWS, heads, features), np.nan, np.float16)
    parts = np.full((ROWS, heads, splits, features + 2), np.nan, np.float32)
    lengths = np.array([used], np.int32)
    library[label(shape, splits > 1)](*[pointer(each) for each in (q, k, v, left, lengths, out, parts)], splits)
    wide = [each.astype(np.float64) for each in (q, k, v)]
    np.testing.assert_allclose(out, expected(wide[0], wide[1], wide[2], left, used), rtol=2e-3, atol=2e-3)
