"""Short convolutions against MLX's own."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx.nn.layers.activations import silu
from mlx.nn.layers.convolution import Conv1d

from engines.gguf.convolution import convolved, last_columns


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 8, 40])
def test_convolution_is_that_of_mlx(tokens: int, bias: bool) -> None:
    mx.random.seed(tokens)
    conv = Conv1d(12, 12, 4, groups=12, bias=bias)
    inputs = mx.random.normal((2, tokens + 3, 12))
    got = convolved(conv, inputs)
    assert got.shape == (2, tokens, 12)
    assert mx.abs(got - silu(conv(inputs))).max() < 1e-5


def test_last_columns_are_those_before_the_padding() -> None:
    inputs = mx.arange(2 * 7).reshape(2, 7, 1)  # three before the first of four tokens
    assert last_columns(inputs, 3, None).reshape(2, 3).tolist() == [[4, 5, 6], [11, 12, 13]]
    assert last_columns(inputs, 3, mx.array([4, 1])).reshape(2, 3).tolist() == [[4, 5, 6], [8, 9, 10]]
    assert last_columns(inputs, 3, mx.array([-2, 0])).reshape(2, 3).tolist() == [[0, 1, 2], [7, 8, 9]]
