"""Products of the compiled kernels against float64 products of the exactly dequantised weights."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from engines.gguf.kernels.cpu import Extension
from engines.gguf.quants import QUANT_TYPES, FloatType, QuantType, quant_type
from tests.engines.gguf.helpers_blocks import random_blocks

each_type = pytest.mark.parametrize("quant", QUANT_TYPES, ids=lambda quant: quant.name)


def activations(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def exact(x: NDArray[np.float32], blocks: NDArray[np.uint8], quant: QuantType) -> NDArray[np.float64]:
    return x.astype(np.float64) @ quant.dequantize_numpy(blocks).astype(np.float64).T


def error(got: mx.array, expected: NDArray[np.float64]) -> float:
    """‖got - expected‖ / ‖expected‖"""
    assert got.shape == expected.shape
    apart = np.array(got.astype(mx.float32)).astype(np.float64) - expected
    return float(np.linalg.norm(apart) / np.linalg.norm(expected))


def bound(quant: QuantType) -> float:
    return 1e-5 if isinstance(quant, FloatType) else 1e-2  # with activations of 8 bits


def odd_columns(quant: QuantType) -> int:
    """A row that ends within a segment of 256 weights, where the type allows it."""
    return {256: 768, 64: 704, 32: 736}.get(quant.block_size, 723)


@each_type
@pytest.mark.parametrize("m", [1, 2, 3, 7, 8, 33])
def test_product_is_near_the_float64_product(compiled: Extension, variant: str, quant: QuantType, m: int) -> None:
    columns = odd_columns(quant)
    blocks, x = random_blocks(quant, 131, columns, seed=m), activations((m, columns), seed=m)
    got = compiled.product(mx.array(x), mx.array(blocks), quant.ggml_id)
    assert error(got, exact(x, blocks, quant)) < bound(quant)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q4_1", "Q8_0", "F16", "IQ4_NL", "IQ4_XS", "MXFP4", "IQ2_S", "NVFP4"])
@pytest.mark.parametrize("m", [64, 255, 257, 600])
def test_product_serves_prompts(compiled: Extension, name: str, m: int) -> None:
    quant = quant_type(name)
    blocks, x = random_blocks(quant, 97, 512, seed=m), activations((m, 512), seed=m)
    assert error(compiled.product(mx.array(x), mx.array(blocks), quant.ggml_id), exact(x, blocks, quant)) < bound(quant)


@each_type
@pytest.mark.parametrize("rows", [1, 7, 8, 15, 16, 17])
def test_product_serves_matrices_of_a_few_rows(compiled: Extension, variant: str, quant: QuantType, rows: int) -> None:
    columns = quant.block_size if quant.block_size > 1 else 5
    blocks, x = random_blocks(quant, rows, columns, seed=rows), activations((40, columns))
    assert error(compiled.product(mx.array(x), mx.array(blocks), quant.ggml_id), exact(x, blocks, quant)) < bound(quant)


@each_type
def test_product_does_not_depend_on_its_neighbours(compiled: Extension, variant: str, quant: QuantType) -> None:
    """A row alone, in a small batch and in a prompt gives the same bits, with one thread and with several."""
    columns = odd_columns(quant)
    blocks, x = mx.array(random_blocks(quant, 75, columns)), mx.array(activations((300, columns)))
    compiled.set_threads(1)
    together = np.array(compiled.product(x, blocks, quant.ggml_id))
    compiled.set_threads(3)
    for start, stop in ((0, 1), (17, 19), (40, 48), (250, 265)):
        np.testing.assert_array_equal(compiled.product(x[start:stop], blocks, quant.ggml_id), together[start:stop])


@pytest.mark.parametrize("name", ["Q4_K", "Q5_0", "F32"])
def test_product_takes_activations_as_they_lie(compiled: Extension, name: str) -> None:
    quant = quant_type(name)
    blocks = random_blocks(quant, 33, 256)
    x = activations((3, 4, 5, 256))
    weights = mx.array(blocks)
    views = [
        (mx.array(x).transpose(2, 0, 1, 3), x.transpose(2, 0, 1, 3)),
        (mx.array(x)[:, ::2, 1:], x[:, ::2, 1:]),
        (mx.broadcast_to(mx.array(x[0, 0, 0]), (6, 256)), np.broadcast_to(x[0, 0, 0], (6, 256))),
        (mx.array(np.ascontiguousarray(x[0, 0].T)).T, x[0, 0]),
    ]
    for view, expected in views:
        assert error(compiled.product(view, weights, quant.ggml_id), exact(expected, blocks, quant)) < bound(quant)


def test_product_takes_rows_of_a_matrix(compiled: Extension) -> None:
    quant = quant_type("Q4_0")
    blocks, x = random_blocks(quant, 64, 256), activations((2, 256))
    whole = mx.array(blocks)
    mx.eval(whole)
    for rows in (whole[5:40], whole[::3], mx.concatenate([whole[:10], whole[20:]])):
        assert error(compiled.product(mx.array(x), rows, quant.ggml_id), exact(x, np.array(rows), quant)) < bound(quant)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_product_answers_in_the_dtype_of_its_input(compiled: Extension, dtype: mx.Dtype) -> None:
    quant = quant_type("Q6_K")
    blocks, x = random_blocks(quant, 20, 256), mx.array(activations((2, 256))).astype(dtype)
    got = compiled.product(x, mx.array(blocks), quant.ggml_id)
    assert got.dtype == dtype
    assert error(got, exact(np.array(x.astype(mx.float32)), blocks, quant)) < 1.5e-2


def test_product_of_zeros_and_of_large_activations_is_finite(compiled: Extension, variant: str) -> None:
    quant = quant_type("Q4_1")
    blocks = random_blocks(quant, 16, 64)
    x = np.zeros((3, 64), np.float32)
    x[1] = 1e30
    x[2, 5] = 1e-30
    got = compiled.product(mx.array(x), mx.array(blocks), quant.ggml_id)
    assert not np.array(got[0]).any()
    assert error(got[1:2], exact(x[1:2], blocks, quant)) < bound(quant)
    assert error(got[2:], exact(x[2:], blocks, quant)) < bound(quant)


@each_type
@pytest.mark.parametrize("m", [1, 3, 70])
def test_product_without_transpose_is_exact(compiled: Extension, quant: QuantType, m: int) -> None:
    blocks, x = random_blocks(quant, 131, 512), activations((m, 131))
    expected = x.astype(np.float64) @ quant.dequantize_numpy(blocks).astype(np.float64)
    assert error(compiled.product(mx.array(x), mx.array(blocks), quant.ggml_id, False), expected) < 1e-5


@each_type
def test_embedding_rows_are_the_dequantised_ones(compiled: Extension, variant: str, quant: QuantType) -> None:
    columns = odd_columns(quant)
    blocks = random_blocks(quant, 50, columns)
    ids = np.array([[3, 49, 0], [7, 7, -1]])
    got = compiled.embedding_rows(mx.array(blocks), mx.array(ids), quant.ggml_id)
    np.testing.assert_array_equal(got, quant.dequantize_numpy(blocks)[ids])
    assert not np.array(compiled.embedding_rows(mx.array(blocks), mx.array([50, -51]), quant.ggml_id)).any()


@pytest.mark.parametrize(("gate", "up"), [("Q4_K", "Q4_K"), ("Q4_K", "Q6_K"), ("Q5_1", "Q4_1"), ("F16", "BF16")])
@pytest.mark.parametrize("m", [1, 9])
def test_gated_product_is_two_products_and_a_gate(compiled: Extension, gate: str, up: str, m: int) -> None:
    first, second = quant_type(gate), quant_type(up)
    a, b = mx.array(random_blocks(first, 75, 512, seed=1)), mx.array(random_blocks(second, 75, 512, seed=2))
    x = mx.array(activations((m, 512)))
    for activation in range(3):
        got = compiled.gated_product(x, a, b, first.ggml_id, second.ggml_id, activation)
        left, right = compiled.product(x, a, first.ggml_id), compiled.product(x, b, second.ggml_id)
        np.testing.assert_array_equal(got, compiled.gated(left, right, activation))


def test_product_of_nothing_is_nothing_or_zero(compiled: Extension) -> None:
    quant = quant_type("Q4_0")
    blocks = mx.array(random_blocks(quant, 4, 64))
    assert compiled.product(mx.zeros((0, 64)), blocks, quant.ggml_id).shape == (0, 4)
    assert not np.array(compiled.product(mx.ones((2, 0)), mx.zeros((4, 0), mx.uint8), quant.ggml_id)).any()


def test_product_refuses_what_does_not_fit(compiled: Extension) -> None:
    blocks = mx.zeros((2, 36), mx.uint8)  # Q4_0: [2, 64]
    for x, weights, type_id in [
        (mx.zeros((1, 65)), blocks, 2),
        (mx.zeros((1, 64), mx.int32), blocks, 2),
        (mx.zeros((1, 64)), mx.zeros((2, 37), mx.uint8), 2),
        (mx.zeros((1, 64)), mx.zeros((36,), mx.uint8), 2),
        (mx.zeros((1, 64)), mx.zeros((2, 36), mx.int8), 2),
        (mx.zeros((1, 64)), blocks, 99),
        (mx.array(1.0), blocks, 2),
    ]:
        with pytest.raises(ValueError, match="innkeeper"):
            compiled.product(x, weights, type_id)
