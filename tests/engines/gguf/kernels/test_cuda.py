"""The CUDA kernels against float64 products of the exactly dequantised weights. All of it needs an NVIDIA GPU."""

import math

import mlx.core as mx
import numpy as np
import pytest

from engines.gguf.experts import KQuantMultiLinear, KQuantSwitchLinear
from engines.gguf.kernels.cuda import CudaBackend, launch
from engines.gguf.layers import KQuantEmbedding
from engines.gguf.quants import QUANT_TYPES, BlockType, QuantType, quant_type
from tests.engines.gguf.helpers_blocks import random_blocks

pytestmark = pytest.mark.skipif(not mx.cuda.is_available(), reason="no CUDA device")

BLOCK_TYPES = [quant for quant in QUANT_TYPES if isinstance(quant, BlockType)]
FLOAT_TYPES = [quant for quant in QUANT_TYPES if not isinstance(quant, BlockType)]
DTYPES = {"float16": (mx.float16, 2e-3), "bfloat16": (mx.bfloat16, 4e-3), "float32": (mx.float32, 2e-3)}
Q4_K, Q6_K, Q8_0 = map(quant_type, ("Q4_K", "Q6_K", "Q8_0"))
LARGE = [Q4_K, Q6_K, Q8_0, *map(quant_type, ("IQ4_NL", "IQ4_XS", "MXFP4", "IQ2_S", "NVFP4"))]


def ident(quant: QuantType) -> str:
    return quant.name


def fresh() -> np.random.Generator:
    return np.random.default_rng()


def error(got: mx.array, expected: np.ndarray) -> float:
    assert got.shape == expected.shape
    difference = np.array(got.astype(mx.float32)).astype(np.float64) - expected
    return float(np.linalg.norm(difference) / np.linalg.norm(expected))


def exact(raw: np.ndarray, quant: QuantType) -> np.ndarray:
    return quant.dequantize_numpy(raw).astype(np.float64)


def wide(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def activations(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    return mx.array(fresh().standard_normal(shape).astype(np.float32)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quant", BLOCK_TYPES, ids=ident)
def test_product_is_the_exact_weights_product_at_every_number_of_rows(quant: QuantType, dtype: str) -> None:
    kind, bound = DTYPES[dtype]
    for rows, columns in (
        (1003, 2048),
        (37, 9 * quant.block_size),
        (130, 13 * 256 if quant.block_size == 256 else 704),
    ):
        raw = random_blocks(quant, rows, columns, seed=int(fresh().integers(1 << 30)))
        blocks, weights = mx.array(raw), exact(raw, quant)
        for m in (1, 2, 5, 8, 9, 16, 17, 32, 33, 64, 65, 600):
            x = activations((m, columns), kind)
            got = CudaBackend().multiply(x, blocks, quant, transpose=True)
            assert got.dtype == kind
            assert error(got, wide(x) @ weights.T) < bound, (rows, columns, m)


@pytest.mark.parametrize("quant", LARGE, ids=ident)
def test_many_rows_of_weights_take_the_kernels_for_large_matrices(quant: QuantType) -> None:
    raw = random_blocks(quant, 8208, 1024, seed=int(fresh().integers(1 << 30)))
    blocks, weights = mx.array(raw), exact(raw, quant)
    for m in (1, 3, 8, 12, 24, 50, 64, 128):
        for kind, bound in DTYPES.values():
            x = activations((m, 1024), kind)
            assert error(CudaBackend().multiply(x, blocks, quant, transpose=True), wide(x) @ weights.T) < bound, (
                m,
                kind,
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quant", BLOCK_TYPES, ids=ident)
def test_product_with_the_weights_untransposed(quant: QuantType, dtype: str) -> None:
    kind, bound = DTYPES[dtype]
    raw = random_blocks(quant, 300, 512, seed=int(fresh().integers(1 << 30)))
    for m, tile in ((1, 1 << 26), (33, 1 << 16)):
        x = activations((m, 300), kind)
        got = CudaBackend(tile).multiply(x, mx.array(raw), quant, transpose=False)
        assert error(got, wide(x) @ exact(raw, quant)) < bound


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("quant", BLOCK_TYPES, ids=ident)
def test_gated_products_are_the_activation_of_one_times_the_other(quant: QuantType, dtype: str) -> None:
    kind, bound = DTYPES[dtype]
    columns = 13 * 256 if quant.block_size == 256 else 704
    raws = [random_blocks(quant, 203, columns, seed=int(fresh().integers(1 << 30))) for _ in range(2)]
    (gate, up), weights = map(mx.array, raws), [exact(raw, quant) for raw in raws]
    for m in (1, 3, 8, 11, 24, 50):
        x = activations((m, columns), kind)
        left, right = (wide(x) @ each.T for each in weights)
        got = CudaBackend().multiply_gated(x, gate, up, quant, "silu")
        assert got is not None and got.dtype == kind
        assert error(got, left / (1 + np.exp(-left)) * right) < 1.5 * bound, m


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("quant", [Q4_K, Q6_K, Q8_0], ids=ident)
def test_joined_products_are_those_of_each_matrix(quant: QuantType, dtype: str) -> None:
    kind, bound = DTYPES[dtype]
    raws = [random_blocks(quant, rows, 768, seed=int(fresh().integers(1 << 30))) for rows in (203, 64, 5)]
    blocks, weights = [mx.array(raw) for raw in raws], [exact(raw, quant) for raw in raws]
    for count in (2, 3):
        for m in (1, 7, 24):
            x = activations((m, 768), kind)
            got = CudaBackend().multiply_joined(x, blocks[:count], quant)
            assert got is not None and len(got) == count
            for out, each in zip(got, weights, strict=False):
                assert error(out, wide(x) @ each.T) < bound, (count, m)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_gated_products_with_the_gelus(activation: str) -> None:
    raws = [random_blocks(Q4_K, 203, 512, seed=int(fresh().integers(1 << 30))) for _ in range(2)]
    (gate, up), weights = map(mx.array, raws), [exact(raw, Q4_K) for raw in raws]
    x = activations((2, 512), mx.float16)
    left, right = (wide(x) @ each.T for each in weights)
    inner = np.vectorize(math.erf)(left / math.sqrt(2))
    if activation == "gelu_tanh":
        inner = np.tanh(math.sqrt(2 / math.pi) * (left + 0.044715 * left**3))
    got = CudaBackend().multiply_gated(x, gate, up, Q4_K, activation)
    assert got is not None
    assert error(got, 0.5 * left * (1 + inner) * right) < 3e-3


def test_the_short_source_and_the_whole_one_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(launch._header()) < 1000, "files of the package can be included here"
    blocks = mx.array(random_blocks(Q6_K, 203, 512, seed=int(fresh().integers(1 << 30))))
    x = activations((3, 512), mx.float16)
    short = CudaBackend().multiply(x, blocks, Q6_K, True)
    mx.eval(short)
    monkeypatch.setattr(launch, "included", lambda: '#include "/no/such/folder/kernels.cuh"\n')
    launch.forget()
    whole = CudaBackend().multiply(x, blocks, Q6_K, True)
    assert len(launch._header()) > 10_000
    launch.forget()
    assert mx.array_equal(short, whole)


def test_dense_products_in_tiles_of_rows_are_the_same() -> None:
    raw = random_blocks(Q6_K, 1001, 512)
    x = activations((100, 512), mx.float16)
    got = CudaBackend(tile_weights=200 * 512).multiply(x, mx.array(raw), Q6_K, transpose=True)
    assert error(got, wide(x) @ exact(raw, Q6_K).T) < 2e-3


@pytest.mark.parametrize("quant", BLOCK_TYPES, ids=ident)
def test_arrays_that_do_not_begin_where_wide_loads_can(quant: QuantType) -> None:
    """Slices: of activations from an odd element on, not contiguous, of blocks from the second row on, every other row."""
    columns = 768
    raw = random_blocks(quant, 50, columns)
    blocks, weights = mx.array(raw), exact(raw, quant)
    for kind, bound in list(DTYPES.values())[:2]:
        for m in (1, 4, 20):
            flat = activations((m * columns + 1,), kind)
            x = flat[1:].reshape(m, columns)
            strided = activations((m, 2 * columns), kind)[:, ::2]
            transposed = activations((columns, m), kind).T
            for each in (x, strided, transposed):
                got = CudaBackend().multiply(each, blocks, quant, transpose=True)
                assert error(got, wide(each) @ weights.T) < bound
            plain = activations((m, columns), kind)
            assert error(CudaBackend().multiply(plain, blocks[1:], quant, True), wide(plain) @ weights[1:].T) < bound
            assert error(CudaBackend().multiply(plain, blocks[::2], quant, True), wide(plain) @ weights[::2].T) < bound
    shifted = mx.array(np.concatenate([np.zeros(1, np.uint8), raw.reshape(-1)]))[1:].reshape(raw.shape)
    for m in (1, 8, 70):
        x = activations((m, columns), mx.float16)
        assert error(CudaBackend().multiply(x, shifted, quant, True), wide(x) @ weights.T) < 2e-3


def test_infinite_activations_stay_in_their_row() -> None:
    raw = random_blocks(Q4_K, 64, 512)
    x = activations((4, 512), mx.float16)
    x[1, 3] = float("inf")
    got = np.array(CudaBackend().multiply(x, mx.array(raw), Q4_K, True).astype(mx.float32))
    assert np.isfinite(got[[0, 2, 3]]).all()
    assert not np.isfinite(got[1]).any()


def test_bfloat16_activations_of_any_usual_size() -> None:
    """Made float16 on the way, at a sixteenth: as exact for small and large ones."""
    raw = random_blocks(Q6_K, 100, 1024, scale=0.02)
    for size in (1e-3, 1.0, 1e5):
        for m in (1, 8, 32):
            x = (activations((m, 1024), mx.float32) * size).astype(mx.bfloat16)
            got = CudaBackend().multiply(x, mx.array(raw), Q6_K, True)
            assert error(got, wide(x) @ exact(raw, Q6_K).T) < 4e-3, (size, m)


@pytest.mark.parametrize("quant", QUANT_TYPES, ids=ident)
def test_embedding_rows_are_the_weights(quant: QuantType) -> None:
    raw = random_blocks(quant, 77, 768)
    ids = mx.array([[3, 76, 0], [5, 5, 41]])
    for dtype, bound in ((mx.float16, 1e-3), (mx.bfloat16, 4e-3), (mx.float32, 1e-6)):
        got = KQuantEmbedding(mx.array(raw), quant, dtype)(ids)
        assert got.dtype == dtype
        assert error(got, exact(raw, quant)[np.array(ids)]) < bound


@pytest.mark.parametrize("quant", FLOAT_TYPES, ids=ident)
@pytest.mark.parametrize("dtype", DTYPES)
def test_float_types_are_dense_products(quant: QuantType, dtype: str) -> None:
    kind, bound = DTYPES[dtype]
    raw = random_blocks(quant, 60, 128)
    for m in (1, 70):
        x = activations((m, 128), kind)
        assert error(CudaBackend().multiply(x, mx.array(raw), quant, True), wide(x) @ exact(raw, quant).T) < max(
            bound, 4e-3
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quant", [*BLOCK_TYPES, quant_type("F16")], ids=ident)
def test_experts_are_found_on_the_device(quant: QuantType, dtype: str) -> None:
    kind, bound = DTYPES[dtype]
    raw = random_blocks(quant, (6, 40), 512)
    layer, weights = KQuantSwitchLinear(mx.array(raw), quant), exact(raw, quant)
    indices = fresh().integers(0, 6, (2, 3, 4))
    x = activations((2, 3, 1, 1, 512), kind)
    expected = np.einsum("bti,btkoi->btko", wide(x)[:, :, 0, 0], weights[indices])[:, :, :, None]
    assert error(layer(x, mx.array(indices)), expected) < bound
    many = np.sort(fresh().integers(0, 6, 203))
    rows = activations((203, 1, 512), kind)
    expected = np.einsum("pi,poi->po", wide(rows)[:, 0], weights[many])[:, None]
    assert error(layer(rows, mx.array(many), sorted_indices=True), expected) < bound


@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_have_their_own_matrices(dtype: str, transpose: bool) -> None:
    kind, bound = DTYPES[dtype]
    raw = random_blocks(Q8_0, (4, 48), 128)
    layer, weights = KQuantMultiLinear(mx.array(raw), Q8_0), exact(raw, Q8_0)
    for shape in ((1, 4, 1), (2, 4, 7), (2, 1, 3)):
        x = activations((*shape, 128 if transpose else 48), kind)
        expected = wide(x) @ (weights.swapaxes(1, 2) if transpose else weights)
        assert error(layer(x, transpose), expected) < bound
