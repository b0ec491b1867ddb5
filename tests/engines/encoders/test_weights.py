"""Matrices that are put together: which, and that the products are the same to the bit."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from engines.encoders.weights import _JOINED_BYTES, Linear
from engines.gguf.kernels.cpu import extension
from engines.gguf.quantise import quantise
from engines.gguf.quants import quant_type

COLUMNS = 64


def matrix(rows: int, seed: int, quant: str = "Q8_0", *, columns: int = COLUMNS, bias: bool = True) -> Linear:
    generator = np.random.default_rng(seed)
    blocks = quantise(generator.normal(size=(rows, columns)).astype(np.float32), quant)
    added = mx.array(generator.normal(size=rows).astype(np.float32)) if bias else None
    return Linear(mx.array(blocks), quant_type(quant), added, mx.float32)


@pytest.fixture
def together() -> None:
    if extension() is None or mx.default_device().type != mx.DeviceType.cpu:
        pytest.skip("without the compiled kernels nothing is put together")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_products_of_joined_matrices_are_those_of_each(together: None, tokens: int, bias: bool) -> None:
    parts = [matrix(rows, rows, bias=bias) for rows in (96, 32, 32)]
    one = Linear.joined(parts, mx.float32)
    assert one is not None and one.rows == 160
    x = mx.array(np.random.default_rng(9).normal(size=(2, tokens, COLUMNS)).astype(np.float32))
    each = mx.concatenate([part(x) for part in parts], axis=-1)
    np.testing.assert_array_equal(np.array(one(x)), np.array(each))


def test_unlike_or_large_matrices_stay_apart(together: None) -> None:
    alike = matrix(32, 1)
    assert Linear.joined([alike, matrix(32, 2, "Q4_0")], mx.float32) is None
    assert Linear.joined([alike, matrix(32, 2, bias=False)], mx.float32) is None
    assert Linear.joined([alike, matrix(32, 2, columns=128)], mx.float32) is None
    rows = _JOINED_BYTES // alike.blocks.shape[1]
    assert Linear.joined([matrix(rows - 32, 2), alike], mx.float32) is not None
    assert Linear.joined([matrix(rows - 31, 2), alike], mx.float32) is None


def test_without_compiled_kernels_matrices_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.encoders.weights.can_fuse", lambda: False)
    assert Linear.joined([matrix(32, 1), matrix(32, 2)], mx.float32) is None
