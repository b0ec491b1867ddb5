from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from engines.gguf import kernels
from engines.gguf.kernels import Backend
from engines.gguf.kernels.blas import BlasBackend
from engines.gguf.kernels.portable import PortableBackend
from engines.gguf.qmatmul import qmatmul
from engines.gguf.quants import QUANT_TYPES, QuantType, quant_type
from tests.engines.gguf.helpers_blocks import random_blocks

each_type = pytest.mark.parametrize("quant", QUANT_TYPES, ids=lambda quant: quant.name)


@pytest.fixture(params=["blas", "portable"])
def chosen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """Each back end in turn behind qmatmul, with tiles small enough that a test's matrix takes several."""
    blas, portable = BlasBackend(cores=3, tile_weights=20_000), PortableBackend(tile_weights=20_000)
    monkeypatch.setattr("engines.gguf.kernels.blas.backend.LEAST_WEIGHTS", 10_000)
    choice: Backend = blas if request.param == "blas" else portable
    monkeypatch.setattr("engines.gguf.qmatmul.backend", lambda lazy: choice)
    yield choice
    blas.close()


def activations(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def error(got: mx.array, expected: np.ndarray) -> float:
    """‖got - expected‖ / ‖expected‖ in float64."""
    assert got.shape == expected.shape
    difference = np.array(got.astype(mx.float32)).astype(np.float64) - expected
    return float(np.linalg.norm(difference) / np.linalg.norm(expected))


def exact(x: np.ndarray, blocks: np.ndarray, quant: QuantType, transpose: bool = True) -> np.ndarray:
    weights = quant.dequantize_numpy(blocks).astype(np.float64)
    return x.astype(np.float64) @ (weights.T if transpose else weights)


@each_type
@pytest.mark.parametrize("m", [1, 2, 5, 33])
def test_qmatmul_equals_the_float64_product(chosen: Backend, quant: QuantType, m: int) -> None:
    blocks = random_blocks(quant, 131, 768, seed=m)
    x = activations((m, 768), seed=m)
    assert error(qmatmul(mx.array(x), mx.array(blocks), quant), exact(x, blocks, quant)) < 1e-5


@each_type
def test_qmatmul_without_transpose_equals_the_float64_product(chosen: Backend, quant: QuantType) -> None:
    blocks = random_blocks(quant, 131, 512)
    x = activations((3, 131))
    got = qmatmul(mx.array(x), mx.array(blocks), quant, transpose=False)
    assert error(got, exact(x, blocks, quant, transpose=False)) < 1e-5


@pytest.mark.parametrize("name", ["Q4_K", "Q5_0"])
@pytest.mark.parametrize("m", [1, 8, 64, 257, 600])
def test_qmatmul_serves_decode_and_prefill_widths(chosen: Backend, name: str, m: int) -> None:
    quant = quant_type(name)
    blocks = random_blocks(quant, 96, 512, seed=m)
    x = activations((m, 512), seed=m)
    assert error(qmatmul(mx.array(x), mx.array(blocks), quant), exact(x, blocks, quant)) < 1e-5


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (1, 4096), (3, 96), (577, 32), (200, 1568)])
def test_qmatmul_serves_odd_shapes(chosen: Backend, rows: int, columns: int) -> None:
    quant = quant_type("Q4_1")
    blocks = random_blocks(quant, rows, columns)
    for m in (1, 7):
        x = activations((m, columns))
        assert error(qmatmul(mx.array(x), mx.array(blocks), quant), exact(x, blocks, quant)) < 1e-5


@pytest.mark.parametrize("name", ["Q6_K", "Q4_1"])
def test_qmatmul_keeps_leading_dimensions(chosen: Backend, name: str) -> None:
    quant = quant_type(name)
    blocks = random_blocks(quant, 40, 256)
    for shape in ((256,), (1, 1, 256), (2, 3, 4, 256)):
        x = activations(shape)
        assert error(qmatmul(mx.array(x), mx.array(blocks), quant), exact(x, blocks, quant)) < 1e-5


def test_qmatmul_reads_activations_and_blocks_that_are_not_contiguous(chosen: Backend) -> None:
    quant = quant_type("Q4_K")
    blocks = random_blocks(quant, 80, 512)
    x = activations((512, 12))
    turned, every_second = mx.array(x).T[::3], mx.array(blocks)[1::2]
    assert error(qmatmul(turned, every_second, quant), exact(x.T[::3], blocks[1::2], quant)) < 1e-5
    one_of_many = mx.array(x).T.reshape(3, 4, 512)[:, -1:, :]
    assert error(qmatmul(one_of_many, every_second, quant), exact(x.T[3::4][:, None], blocks[1::2], quant)) < 1e-5


@pytest.mark.parametrize(("dtype", "bound"), [(mx.float16, 1e-3), (mx.bfloat16, 6e-3)])
@pytest.mark.parametrize("m", [1, 9])
def test_qmatmul_answers_in_the_dtype_of_the_activations(
    chosen: Backend, dtype: mx.Dtype, bound: float, m: int
) -> None:
    quant = quant_type("Q5_K")
    blocks = random_blocks(quant, 64, 512)
    x = mx.array(activations((m, 512))).astype(dtype)
    got = qmatmul(x, mx.array(blocks), quant)
    assert got.dtype == dtype
    assert error(got, exact(np.array(x.astype(mx.float32)), blocks, quant)) < bound


def test_qmatmul_of_nothing_is_empty(chosen: Backend) -> None:
    blocks = mx.array(random_blocks(quant_type("Q8_0"), 5, 64))
    assert qmatmul(mx.zeros((2, 0, 64)), blocks, quant_type("Q8_0")).shape == (2, 0, 5)


@pytest.mark.parametrize(
    ("x", "blocks", "what"),
    [
        (mx.zeros((1, 32)), mx.zeros((2, 36), mx.uint8), r"do not fit Q4_0 weights \[2, 64\]"),
        (mx.zeros((1, 32)), mx.zeros((2, 19), mx.uint8), "whole blocks of 18 bytes; 19 are not"),
        (mx.zeros((1, 32)), mx.zeros((18,), mx.uint8), "blocks must be uint8"),
        (mx.zeros((1, 32)), mx.zeros((2, 18), mx.int8), "blocks must be uint8"),
        (mx.zeros((1, 32), mx.int32), mx.zeros((2, 18), mx.uint8), "must be floating"),
        (mx.array(1.0), mx.zeros((2, 18), mx.uint8), "do not fit"),
    ],
)
def test_qmatmul_refuses_what_does_not_fit(x: mx.array, blocks: mx.array, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        qmatmul(x, blocks, quant_type("Q4_0"))


def test_qmatmul_gives_the_same_bits_whatever_thread_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.gguf.kernels.blas.backend.LEAST_WEIGHTS", 1000)
    quant = quant_type("Q4_K")
    blocks, x = mx.array(random_blocks(quant, 300, 512)), mx.array(activations((4, 300)))
    back_end = BlasBackend(cores=4)
    answers = [np.array(back_end.multiply(x, blocks, quant, False)) for _ in range(5)]
    back_end.close()
    assert all(np.array_equal(answers[0], answer) for answer in answers)


def test_backend_is_chosen_by_the_device() -> None:
    assert kernels.backend_name() == ("blas" if mx.default_device().type == mx.cpu else "portable")
    assert kernels.BACKENDS[-1].available()
    assert kernels.BACKENDS[-1].lazy


def test_lazy_product_is_left_to_a_lazy_back_end(monkeypatch: pytest.MonkeyPatch) -> None:
    quant = quant_type("Q8_0")
    blocks, x = random_blocks(quant, 20, 64), activations((3, 64))
    asked: list[bool] = []

    def choose(*, lazy: bool) -> Backend:
        asked.append(lazy)
        return kernels.backend(lazy=lazy)

    monkeypatch.setattr("engines.gguf.qmatmul.backend", choose)
    for lazy in (False, True):
        got = qmatmul(mx.array(x), mx.array(blocks), quant, lazy=lazy)
        assert error(got, exact(x, blocks, quant)) < 1e-5
        assert kernels.backend(lazy=lazy).lazy or not lazy
    assert asked == [False, True]
