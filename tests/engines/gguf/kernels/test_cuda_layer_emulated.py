"""The kernels between a layer's products on a CPU, thread by thread."""

import ctypes

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.engines.gguf.kernels.helpers_emulated import aligned, bfloat16_bits, bfloat16_values, compiled

ROWS, HEADS, KV_HEADS, FEATURES, DIMS = 2, 3, 1, 16, 12
WIDTHS = (64, 2056)  # less than a thread block takes at a time, and more
EPS, INNER_EPS = 1e-5, 1e-3

Floats = NDArray[np.float64]


def sum_norm(width: int, inner: bool) -> str:
    pieces = -(-width // 2048)
    return (
        f'extern "C" void sum_norm_{width}_{int(inner)}(const __nv_bfloat16* x, const __nv_bfloat16* r, '
        "const __nv_bfloat16* inner, const __nv_bfloat16* weight, __nv_bfloat16* h, __nv_bfloat16* y) "
        f"{{ run_grid({ROWS}, 1, 256, [=] {{ kq_sum_norm<__nv_bfloat16, 8, {pieces}, {str(inner).lower()}>"
        f"(x, r, inner, weight, h, y, {width}, {INNER_EPS}f, {EPS}f); }}); }}\n"
    )


def rotate(traditional: bool) -> str:
    return (
        f'extern "C" void rotate_{int(traditional)}(const __half* q, const __half* k, const int* at, __half* q_out, '
        "__half* k_out, const float* wavelengths, int one) "
        f"{{ run_grid(3, 1, 32, [=] {{ kq_rotation turn = {{{FEATURES}, {DIMS}, wavelengths, 13.28771f, 0.5f, 1.25f}}; "
        f"kq_rotate<__half, {str(traditional).lower()}>(q, k, at, q_out, k_out, {ROWS}, {HEADS}, {KV_HEADS}, one, turn); "
        "}); }\n"
    )


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    text = "".join(sum_norm(width, inner) for width in WIDTHS for inner in (False, True))
    return compiled(text + rotate(False) + rotate(True), tmp_path_factory.mktemp("layer"))


def pointer(array: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def normed(x: Floats, weight: Floats, eps: float) -> Floats:
    scaled: Floats = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight
    return scaled


@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("inner", [False, True], ids=["plain", "inner"])
@pytest.mark.parametrize("width", WIDTHS)
def test_sum_norm_is_the_sum_and_its_norm(library: ctypes.CDLL, width: int, inner: bool, offset: int) -> None:
    draw = np.random.default_rng(5).standard_normal
    shapes = [(ROWS, width), (ROWS, width), (width,), (width,)]
    bits = [bfloat16_bits(draw(shape)) for shape in shapes]
    x, r, inner_weight, weight = (bfloat16_values(each) for each in bits)
    # One element further on, no wide load can be used.
    held = [aligned(np.concatenate([np.zeros(offset, np.uint16), each.reshape(-1)])) for each in bits]
    h, y = (aligned(np.full((ROWS, width), 0x7FFF, np.uint16)) for _ in range(2))
    library[f"sum_norm_{width}_{int(inner)}"](*(pointer(each[offset:]) for each in held), pointer(h), pointer(y))
    expected = x + (normed(r, inner_weight, INNER_EPS) if inner else r)
    np.testing.assert_allclose(bfloat16_values(h), expected, rtol=2**-7, atol=2**-6)
    answer = normed(bfloat16_values(h), weight, EPS)  # of the sum as it is rounded
    np.testing.assert_allclose(bfloat16_values(y), answer, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("one_position", [False, True])
@pytest.mark.parametrize("wavelengths", [False, True])
@pytest.mark.parametrize("traditional", [False, True])
def test_rotate_turns_pairs(library: ctypes.CDLL, traditional: bool, wavelengths: bool, one_position: bool) -> None:
    draw = np.random.default_rng(6).standard_normal
    q, k = (aligned(draw((ROWS, count, FEATURES)).astype(np.float16)) for count in (HEADS, KV_HEADS))
    outs = [np.full_like(each, np.nan) for each in (q, k)]
    half = DIMS // 2
    waves = aligned(np.linspace(1, 40, half).astype(np.float32))
    positions = np.array([7] if one_position else [7, 300], np.int32)
    library[f"rotate_{int(traditional)}"](
        pointer(q),
        pointer(k),
        pointer(positions),
        *map(pointer, outs),
        pointer(waves) if wavelengths else None,
        int(one_position),
    )
    lengths = waves.astype(np.float64) if wavelengths else 2 ** (13.28771 * np.arange(half) / half)
    angle = 0.5 * np.broadcast_to(positions, ROWS)[:, None, None] / lengths
    first = np.arange(half) * 2 if traditional else np.arange(half)
    second = first + 1 if traditional else first + half
    for given, got in zip((q, k), outs, strict=True):
        expected = given.astype(np.float64)
        a, b = expected[..., first] * 1.25, expected[..., second] * 1.25
        expected[..., first] = a * np.cos(angle) - b * np.sin(angle)
        expected[..., second] = a * np.sin(angle) + b * np.cos(angle)
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-3)
