"""Products with several matrices of the compiled kernels against float64 products of the exactly dequantised weights."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from engines.gguf.experts import KQuantMultiLinear, KQuantSwitchLinear
from engines.gguf.kernels.cpu import Extension
from engines.gguf.quants import QUANT_TYPES, QuantType, quant_type
from tests.engines.gguf.helpers_blocks import random_blocks
from tests.engines.gguf.kernels.cpu.test_product import activations, bound, error, odd_columns

each_type = pytest.mark.parametrize("quant", QUANT_TYPES, ids=lambda quant: quant.name)


def weights(blocks: NDArray[np.uint8], quant: QuantType) -> NDArray[np.float64]:
    """[matrices, rows, columns]"""
    flat = quant.dequantize_numpy(blocks.reshape(-1, blocks.shape[-1])).astype(np.float64)
    return flat.reshape(*blocks.shape[:2], -1)


def exact(
    x: NDArray[np.float32], blocks: NDArray[np.uint8], quant: QuantType, experts: NDArray[np.int32], share: int = 1
) -> NDArray[np.float64]:
    """One row after the other."""
    dense = weights(blocks, quant)
    return np.stack([dense[expert] @ x[pair // share].astype(np.float64) for pair, expert in enumerate(experts)])


@each_type
@pytest.mark.parametrize(("tokens", "share"), [(1, 1), (1, 4), (3, 2), (64, 4)])
def test_experts_are_near_the_float64_products(
    compiled: Extension, variant: str, quant: QuantType, tokens: int, share: int
) -> None:
    columns = odd_columns(quant)
    blocks, x = random_blocks(quant, (7, 37), columns), activations((tokens, columns))
    experts = np.random.default_rng(tokens).integers(0, 7, tokens * share).astype(np.int32)
    got = compiled.expert_product(mx.array(x), mx.array(blocks), mx.array(experts), quant.ggml_id, share)
    assert error(got, exact(x, blocks, quant, experts, share)) < bound(quant)


@pytest.mark.parametrize("count", [1, 2, 8, 60])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_any_number_of_experts_serves_rows_in_any_order(compiled: Extension, count: int, is_sorted: bool) -> None:
    quant = quant_type("Q5_K")
    blocks, x = random_blocks(quant, (count, 19), 256), activations((100, 256))
    experts = np.random.default_rng(count).integers(0, count, 100).astype(np.int32)
    experts = np.sort(experts) if is_sorted else experts
    got = compiled.expert_product(mx.array(x), mx.array(blocks), mx.array(experts), quant.ggml_id)
    assert error(got, exact(x, blocks, quant, experts)) < bound(quant)


def test_more_pairs_than_are_taken_at_a_time_are_served(compiled: Extension) -> None:
    """A prompt: also more rows an expert than a block of activations has."""
    quant = quant_type("Q8_0")
    blocks, x = random_blocks(quant, (3, 8), 32), activations((1500, 32))
    experts = np.random.default_rng(0).integers(0, 3, 4500).astype(np.uint32)
    got = compiled.expert_product(mx.array(x), mx.array(blocks), mx.array(experts), quant.ggml_id, 3)
    assert error(got, exact(x, blocks, quant, experts.astype(np.int32), 3)) < bound(quant)


@each_type
def test_an_expert_gives_the_bits_of_its_matrix_alone(compiled: Extension, variant: str, quant: QuantType) -> None:
    """Whatever other rows and experts there are, and with any number of threads."""
    columns = odd_columns(quant)
    blocks, x = mx.array(random_blocks(quant, (5, 40), columns)), mx.array(activations((33, columns)))
    experts = np.random.default_rng(1).integers(0, 5, 33)
    for threads in (1, 3):
        compiled.set_threads(threads)
        together = np.array(compiled.expert_product(x, blocks, mx.array(experts), quant.ggml_id))
        for row in range(0, 33, 8):
            alone = compiled.product(x[row : row + 1], blocks[int(experts[row])], quant.ggml_id)
            np.testing.assert_array_equal(together[row : row + 1], alone)


def test_experts_take_arrays_as_they_lie(compiled: Extension) -> None:
    quant = quant_type("Q4_K")
    whole, x = random_blocks(quant, (9, 16), 256), activations((256, 12))
    lain = mx.array(whole)
    mx.eval(lain)
    experts = np.array([2, 0, 1, 2, 1, 0], np.int64)
    for view, blocks in ((lain[::3], whole[::3]), (lain[4:7, 3:], whole[4:7, 3:])):
        got = compiled.expert_product(mx.array(x).T[::2], view, mx.array(experts), quant.ggml_id)
        assert error(got, exact(x.T[::2], blocks, quant, experts.astype(np.int32))) < bound(quant)


def test_experts_that_do_not_exist_give_zeros(compiled: Extension) -> None:
    quant = quant_type("Q6_K")
    blocks, x = random_blocks(quant, (3, 8), 256), activations((5, 256))
    got = compiled.expert_product(mx.array(x), mx.array(blocks), mx.array([3, -1, -4, 1, 2]), quant.ggml_id)
    assert not np.array(got)[[0, 2]].any()
    kept = [1, 3, 4]
    expected = exact(x[kept], blocks, quant, np.array([2, 1, 2], np.int32))
    assert error(got[mx.array(kept)], expected) < bound(quant)


def test_experts_of_nothing_and_in_half_precision(compiled: Extension) -> None:
    quant = quant_type("Q4_0")
    blocks = random_blocks(quant, (2, 8), 64)
    nothing = compiled.expert_product(mx.zeros((0, 64)), mx.array(blocks), mx.array([], mx.int32), quant.ggml_id)
    assert nothing.shape == (0, 8)
    x = mx.array(activations((3, 64))).astype(mx.bfloat16)
    got = compiled.expert_product(x, mx.array(blocks), mx.array([1, 0, 1]), quant.ggml_id)
    assert got.dtype == mx.bfloat16
    assert error(got, exact(np.array(x.astype(mx.float32)), blocks, quant, np.array([1, 0, 1], np.int32))) < 1.5e-2


@each_type
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("m", [1, 5, 64])
@pytest.mark.parametrize("shared", [False, True])
def test_heads_are_near_the_float64_products_either_way(
    compiled: Extension, quant: QuantType, transpose: bool, m: int, shared: bool
) -> None:
    columns = odd_columns(quant)
    blocks = random_blocks(quant, (3, 37), columns)
    x = activations((2, 1 if shared else 3, m, columns if transpose else 37))
    dense = weights(blocks, quant)
    expected = x.astype(np.float64) @ (dense.swapaxes(1, 2) if transpose else dense)
    got = compiled.head_product(mx.array(x), mx.array(blocks), quant.ggml_id, transpose)
    assert error(got, expected) < (bound(quant) if transpose else 1e-5)


@pytest.mark.parametrize("transpose", [True, False])
def test_heads_take_activations_as_they_lie(compiled: Extension, variant: str, transpose: bool) -> None:
    quant = quant_type("Q5_1")
    blocks = random_blocks(quant, (4, 150), 320)
    x = activations((2, 7, 4, 320 if transpose else 150))
    dense = weights(blocks, quant)
    expected = x.swapaxes(1, 2).astype(np.float64) @ (dense.swapaxes(1, 2) if transpose else dense)
    got = compiled.head_product(mx.array(x).swapaxes(1, 2), mx.array(blocks), quant.ggml_id, transpose)
    assert error(got, expected) < (bound(quant) if transpose else 1e-5)


def test_matrices_that_do_not_fit_are_refused(compiled: Extension) -> None:
    blocks, ids = mx.zeros((3, 2, 36), mx.uint8), mx.array([0, 1])  # Q4_0: [3, 2, 64]
    for x, matrices, experts, share in [
        (mx.zeros((2, 65)), blocks, ids, 1),
        (mx.zeros((2, 64)), blocks[0], ids, 1),
        (mx.zeros((2, 64)), blocks, ids, 2),
        (mx.zeros((2, 64)), blocks, ids, 0),
        (mx.zeros((1, 2, 64)), blocks, ids, 1),
        (mx.zeros((2, 64)), blocks, mx.zeros(2), 1),
        (mx.zeros((2, 64), mx.int32), blocks, ids, 1),
    ]:
        with pytest.raises(ValueError, match="innkeeper"):
            compiled.expert_product(x, matrices, experts, 2, share)
    for x, transpose in [(mx.zeros((2, 5, 64)), True), (mx.zeros((3, 5, 64)), False), (mx.zeros((5, 64)), True)]:
        with pytest.raises(ValueError, match="innkeeper"):
            compiled.head_product(x, blocks, 2, transpose)


def test_the_leaves_use_the_compiled_kernels(compiled: Extension) -> None:
    """The answers have the error of 8-bit activations, not that of float32."""
    quant = quant_type("Q4_K")
    blocks = random_blocks(quant, (4, 16), 256)
    x = activations((2, 3, 1, 1, 256))
    indices = np.random.default_rng(0).integers(0, 4, (2, 3, 2)).astype(np.uint32)
    got = KQuantSwitchLinear(mx.array(blocks), quant)(mx.array(x), mx.array(indices))
    expected = exact(x.reshape(6, 256), blocks, quant, indices.reshape(-1).astype(np.int32), 2)
    assert 1e-4 < error(got.reshape(12, 16), expected) < bound(quant)
    heads = KQuantMultiLinear(mx.array(blocks), quant)(mx.array(x[0, :1, 0]))
    assert 1e-4 < error(heads, x[0, :1, 0].astype(np.float64) @ weights(blocks, quant).swapaxes(1, 2)) < bound(quant)
