# mypy: disable-error-code="no-untyped-call"
# (mlx.nn has no annotations)
import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.activations import ReLU
from mlx.nn.layers.containers import Sequential
from mlx.nn.layers.linear import Linear
from mlx.utils import tree_flatten

from engines.gguf.layers import KQuantEmbedding, KQuantLinear
from engines.gguf.quants import QuantType, quant_type
from tests.engines.gguf.helpers_blocks import random_blocks

Q4_K, Q6_K, Q8_0 = map(quant_type, ("Q4_K", "Q6_K", "Q8_0"))


def linear(rows: int = 24, columns: int = 512, quant: QuantType = Q4_K, bias: mx.array | None = None) -> KQuantLinear:
    return KQuantLinear(mx.array(random_blocks(quant, rows, columns)), quant, bias)


def exact(layer: KQuantLinear | KQuantEmbedding) -> np.ndarray:
    return layer.quant.dequantize_numpy(np.array(layer.blocks)).astype(np.float64)


def close(got: mx.array, expected: np.ndarray, bound: float = 1e-5) -> bool:
    difference = np.array(got.astype(mx.float32)).astype(np.float64) - expected
    return got.shape == expected.shape and bool(np.linalg.norm(difference) < bound * np.linalg.norm(expected))


def test_linear_equals_a_dense_layer_of_the_same_weights() -> None:
    bias = mx.random.normal((24,), key=mx.random.key(1))
    layer, x = linear(bias=bias), mx.random.normal((2, 3, 512), key=mx.random.key(2))
    assert close(layer(x), np.array(x) @ exact(layer).T + np.array(bias))
    plain = linear()
    assert close(plain(x), np.array(x) @ exact(plain).T)


@pytest.mark.parametrize(("dtype", "bound"), [(mx.float16, 2e-3), (mx.bfloat16, 1e-2)])
def test_linear_answers_in_the_dtype_of_its_input_whatever_the_bias(dtype: mx.Dtype, bound: float) -> None:
    layer = linear(bias=mx.ones(24, mx.float32))
    x = mx.random.normal((1, 4, 512), key=mx.random.key(2)).astype(dtype)
    got = layer(x)
    assert got.dtype == dtype
    assert close(got, np.array(x.astype(mx.float32)) @ exact(layer).T + 1, bound)


def test_blocks_survive_a_change_of_dtype_and_the_bias_follows_it() -> None:
    model = Sequential(linear(bias=mx.ones(24)), KQuantEmbedding(mx.array(random_blocks(Q8_0, 4, 64)), Q8_0))
    before = np.array(model.layers[0].blocks)
    model.set_dtype(mx.float16)
    assert model.layers[0].blocks.dtype == model.layers[1].blocks.dtype == mx.uint8
    assert np.array_equal(np.array(model.layers[0].blocks), before)
    assert model.layers[0].bias.dtype == mx.float16


def test_blocks_are_parameters_that_do_not_train() -> None:
    model = Sequential(linear(bias=mx.ones(24)), KQuantEmbedding(mx.array(random_blocks(Q8_0, 4, 64)), Q8_0))
    names = dict(tree_flatten(model.parameters()))
    assert set(names) == {"layers.0.blocks", "layers.0.bias", "layers.1.blocks"}
    assert sum(array.nbytes for array in names.values()) == 24 * Q4_K.row_bytes(512) + 24 * 4 + 4 * Q8_0.row_bytes(64)
    assert tree_flatten(model.trainable_parameters()) == []


def test_leaves_replace_those_of_a_stock_model() -> None:
    model = Sequential(Linear(512, 24, bias=False), ReLU())
    leaf = linear()
    model.update_modules({"layers": [leaf]})
    x = mx.random.normal((5, 512), key=mx.random.key(0))
    assert model.layers[0] is leaf
    assert close(model(x), np.maximum(np.array(x) @ exact(leaf).T, 0))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 0)])
def test_embedding_gives_the_rows_of_the_ids(shape: tuple[int, ...]) -> None:
    blocks = random_blocks(Q6_K, 50, 256)
    layer = KQuantEmbedding(mx.array(blocks), Q6_K)
    ids = np.random.default_rng(0).integers(0, 50, shape)
    got = layer(mx.array(ids))
    assert got.dtype == mx.float32
    assert np.array_equal(np.array(got), Q6_K.dequantize_numpy(blocks)[ids])


def test_embedding_begins_the_compute_dtype() -> None:
    layer = KQuantEmbedding(mx.array(random_blocks(Q8_0, 5, 64)), Q8_0, mx.bfloat16)
    assert layer(mx.array([1, 2])).dtype == mx.bfloat16


def test_embedding_reads_only_the_rows_it_gives() -> None:
    """Looking up 4 of 262144 rows of 640 must not dequantise them all, which would take 640 MiB."""
    layer = KQuantEmbedding(mx.zeros((262144, Q8_0.row_bytes(640)), mx.uint8), Q8_0)
    mx.eval(layer.blocks)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mx.eval(layer(mx.array([[0, 7, 262143, 9]])))
    assert mx.get_peak_memory() - before < 1 << 20


def test_tied_head_multiplies_with_the_same_rows() -> None:
    layer = KQuantEmbedding(mx.array(random_blocks(Q8_0, 300, 96)), Q8_0)
    x = mx.random.normal((2, 1, 96), key=mx.random.key(3))
    assert close(layer.as_linear(x), np.array(x) @ exact(layer).T)


@pytest.mark.parametrize("shape", [(2, 7, 96), (3, 1, 96), (7, 96)])
def test_heads_give_logits_for_one_token_and_for_many(shape: tuple[int, ...]) -> None:
    blocks = mx.array(random_blocks(Q8_0, 300, 96))
    tied, untied = KQuantEmbedding(blocks, Q8_0), KQuantLinear(blocks, Q8_0, head=True)
    x = mx.random.normal(shape, key=mx.random.key(3))
    expected = np.array(x) @ exact(tied).T
    assert close(tied.as_linear(x), expected)
    assert close(untied(x), expected)


@pytest.mark.parametrize("tied", [True, False])
def test_logits_of_a_prefill_cost_nothing_unless_evaluated(tied: bool) -> None:
    """512 tokens of a 262144-token vocabulary are 512 MiB of logits, which prefill drops."""
    blocks = mx.zeros((262144, Q8_0.row_bytes(32)), mx.uint8)
    x = mx.zeros((1, 512, 32))
    mx.eval(blocks, x)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    logits = KQuantEmbedding(blocks, Q8_0).as_linear(x) if tied else KQuantLinear(blocks, Q8_0, head=True)(x)
    assert logits.shape == (1, 512, 262144)
    assert mx.get_peak_memory() - before < 1 << 20


def test_weight_is_dequantised_when_read() -> None:
    layer = linear()
    assert layer.weight.shape == (24, 512)
    assert layer.weight.dtype == mx.float32
    assert np.array_equal(np.array(layer.weight), exact(layer).astype(np.float32))
    with pytest.raises(AttributeError):
        layer.weight = mx.zeros((24, 512))  # type: ignore[misc]


def test_representation_tells_sizes_and_type() -> None:
    assert "input_dims=512, output_dims=24, quant=Q4_K, bias=False" in repr(linear())
    embedding = KQuantEmbedding(mx.array(random_blocks(Q8_0, 4, 64)), Q8_0)
    assert "num_embeddings=4, dims=64, quant=Q8_0" in repr(embedding)


def test_wrong_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="must be uint8"):
        KQuantLinear(mx.zeros((2, 144), mx.int32), Q4_K)
    with pytest.raises(ValueError, match="must be uint8"):
        KQuantEmbedding(mx.zeros((144,), mx.uint8), Q4_K)
    with pytest.raises(ValueError, match="whole blocks"):
        KQuantLinear(mx.zeros((2, 145), mx.uint8), Q4_K)
    with pytest.raises(ValueError, match=r"bias must be \[2\]"):
        KQuantLinear(mx.zeros((2, 144), mx.uint8), Q4_K, mx.zeros(3))
