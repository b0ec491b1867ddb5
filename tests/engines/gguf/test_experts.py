# mypy: disable-error-code="no-untyped-call"
# (mlx.nn has no annotations)
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.mla import MultiLinear
from mlx_lm.models.switch_layers import SwitchLinear, _gather_sort

from engines.gguf.experts import KQuantMultiLinear, KQuantSwitchLinear, multiply_experts
from engines.gguf.quants import quant_type
from tests.engines.gguf.helpers_blocks import random_blocks

Q4_K, Q8_0 = map(quant_type, ("Q4_K", "Q8_0"))


def switch(experts: int = 5, rows: int = 24, columns: int = 256, bias: bool = False) -> KQuantSwitchLinear:
    biases = mx.random.normal((experts, rows), key=mx.random.key(9)) if bias else None
    return KQuantSwitchLinear(mx.array(random_blocks(Q4_K, (experts, rows), columns)), Q4_K, biases)


def stock(layer: KQuantSwitchLinear) -> SwitchLinear:
    dense = SwitchLinear(layer.input_dims, layer.output_dims, layer.num_experts, bias="bias" in layer)
    dense.weight = layer.weight
    if "bias" in layer:
        dense.bias = layer.bias
    return dense


def close(got: mx.array, expected: mx.array, bound: float = 1e-5) -> bool:
    a, b = (np.array(each.astype(mx.float32)).astype(np.float64) for each in (got, expected))
    return got.shape == expected.shape and bool(np.linalg.norm(a - b) < bound * np.linalg.norm(b))


@pytest.mark.parametrize("bias", [False, True])
def test_switch_equals_the_stock_layer_on_a_token_for_several_experts(bias: bool) -> None:
    layer = switch(bias=bias)
    x = mx.expand_dims(mx.random.normal((2, 3, 256), key=mx.random.key(1)), (-2, -3))
    indices = mx.array(np.random.default_rng(2).integers(0, 5, (2, 3, 4)).astype(np.uint32))
    got = layer(x, indices)
    assert got.shape == (2, 3, 4, 1, 24)
    assert close(got, stock(layer)(x, indices))


def test_switch_equals_the_stock_layer_on_a_row_for_each_expert() -> None:
    layer = switch(bias=True)
    x = mx.random.normal((2, 3, 4, 1, 256), key=mx.random.key(1))
    indices = mx.array(np.random.default_rng(2).integers(0, 5, (2, 3, 4)).astype(np.uint32))
    assert close(layer(x, indices), stock(layer)(x, indices))


def test_switch_equals_the_stock_layer_on_sorted_rows() -> None:
    layer = switch()
    x = mx.expand_dims(mx.random.normal((40, 256), key=mx.random.key(1)), (-2, -3))
    indices = mx.array(np.random.default_rng(2).integers(0, 5, (40, 2)).astype(np.uint32))
    rows, sorted_indices, _ = _gather_sort(x, indices)
    got = layer(rows, sorted_indices, sorted_indices=True)
    assert close(got, stock(layer)(rows, sorted_indices, sorted_indices=True))


def test_switch_takes_several_rows_a_pair_and_keeps_the_dtype() -> None:
    layer = switch(bias=True)
    x = mx.random.normal((3, 2, 256), key=mx.random.key(1)).astype(mx.float16)
    indices = mx.array([4, 0, 4])
    got = layer(x, indices)
    assert got.dtype == mx.float16
    expected = x.astype(mx.float32) @ layer.weight[indices].swapaxes(1, 2) + layer.bias[indices][:, None]
    assert close(got, expected, 2e-3)


def test_switch_leaves_unused_experts_alone() -> None:
    layer = switch()
    poisoned = np.array(layer.blocks)
    poisoned[3] = np.frombuffer(np.float16("nan").tobytes() * (poisoned[3].size // 2), np.uint8).reshape(
        poisoned[3].shape
    )
    broken = KQuantSwitchLinear(mx.array(poisoned), Q4_K)
    x, indices = mx.random.normal((2, 1, 1, 256), key=mx.random.key(1)), mx.array([[0, 4], [1, 2]])
    assert close(broken(x, indices), layer(x, indices))


def test_pairs_share_rows_in_order() -> None:
    blocks = mx.array(random_blocks(Q8_0, (3, 8), 64))
    x = mx.random.normal((2, 64), key=mx.random.key(1))
    got = multiply_experts(x, blocks, Q8_0, mx.array([2, 0, 1, 2]), share=2)
    weights = Q8_0.dequantize(blocks)
    assert close(got, mx.stack([x[0] @ weights[2].T, x[0] @ weights[0].T, x[1] @ weights[1].T, x[1] @ weights[2].T]))
    assert multiply_experts(x[:0], blocks, Q8_0, mx.array([], mx.int32), share=2).shape == (0, 8)


@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("shape", [(1, 4, 3), (2, 4, 1), (2, 1, 5)])
def test_multi_linear_equals_the_stock_layer_either_way(shape: tuple[int, int, int], transpose: bool) -> None:
    layer = KQuantMultiLinear(mx.array(random_blocks(Q8_0, (4, 16), 64)), Q8_0)
    dense = MultiLinear(64, 16, 4)
    dense.weight = layer.weight
    x = mx.random.normal((*shape, 64 if transpose else 16), key=mx.random.key(1))
    assert close(layer(x, transpose), dense(x, transpose))


def test_what_does_not_fit_is_refused() -> None:
    blocks = mx.array(random_blocks(Q8_0, (4, 16), 64))
    with pytest.raises(ValueError, match=r"count, rows, row bytes"):
        KQuantSwitchLinear(blocks[0], Q8_0)
    with pytest.raises(ValueError, match="bias must be"):
        KQuantSwitchLinear(blocks, Q8_0, mx.zeros(16))
    with pytest.raises(ValueError, match="do not fit"):
        KQuantSwitchLinear(blocks, Q8_0)(mx.zeros((1, 1, 32)), mx.array([0]))
    with pytest.raises(ValueError, match="heads"):
        KQuantMultiLinear(blocks, Q8_0)(mx.zeros((1, 3, 1, 64)))
