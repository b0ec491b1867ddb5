"""Leaves that hold several tensors, or one the other way around."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
from mlx_lm.models.mla import MultiLinear

from engines.gguf.composites import FlippedMultiLinear, SideBySide
from engines.gguf.layers import KQuantLinear
from engines.gguf.quants import quant_type
from tests.engines.gguf.helpers_blocks import random_blocks


def test_side_by_side_is_the_matrix_of_all_rows() -> None:
    """Of different types, one with a bias."""
    bias = mx.array([1.0, 2.0, 3.0, 4.0])
    parts = [
        KQuantLinear(mx.array(random_blocks(quant_type(name), rows, 256, seed=rows)), quant_type(name), own)
        for name, rows, own in (("Q8_0", 6, None), ("Q4_K", 4, bias))
    ]
    joined = SideBySide(parts)
    x = mx.random.normal((2, 5, 256), key=mx.random.key(0))
    expected = np.array(x) @ np.array(joined.weight).T
    expected[..., 6:] += np.array(bias)
    assert joined.weight.shape == (10, 256)
    np.testing.assert_allclose(np.array(joined(x)), expected, rtol=1e-4, atol=1e-3)


def test_flipped_heads_are_those_of_the_transposed_matrices() -> None:
    quant = quant_type("Q8_0")
    blocks = mx.array(random_blocks(quant, (3, 16), 32, scale=0.1))
    flipped = FlippedMultiLinear(blocks, quant)
    stock = MultiLinear(16, 32, 3)
    stock.weight = flipped.stored.weight.swapaxes(-1, -2)
    for width, transpose in ((16, True), (32, False)):
        x = mx.random.normal((2, 3, 4, width), key=mx.random.key(width))
        np.testing.assert_allclose(
            np.array(flipped(x, transpose=transpose)), np.array(stock(x, transpose=transpose)), rtol=1e-4, atol=1e-4
        )
