"""Norm, rotary embedding, gated activation, log-sum-exp and softmax against MLX's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.activations import gelu, gelu_approx, silu

from engines.gguf.kernels.cpu import Extension

WITHIN = 1e-5


def random(*shape: int, seed: int = 0, spread: float = 1.0) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * np.float32(spread))


def apart(got: mx.array, expected: Any) -> float:
    """The largest difference, over the largest number."""
    first, second = np.array(got).astype(np.float64), np.array(expected).astype(np.float64)
    assert first.shape == second.shape
    return float(np.abs(first - second).max() / np.abs(second).max())


@pytest.mark.parametrize("width", [1, 15, 64, 70, 576])
def test_rms_norm_equals_mlx(compiled: Extension, variant: str, width: int) -> None:
    x, weight = random(2, 3, 5, width), random(width, seed=1)
    for view in (x, x.transpose(2, 0, 1, 3), x[:, 1:, ::2]):
        assert apart(compiled.rms_norm(view, weight, 1e-5), mx.fast.rms_norm(view, weight, 1e-5)) < WITHIN
        assert apart(compiled.rms_norm(view, None, 1e-6), mx.fast.rms_norm(view, None, 1e-6)) < WITHIN


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("dims", [20, 64, 72])
@pytest.mark.parametrize("offset", [0, 11, [3], [3, 40]])
def test_rope_equals_mlx(compiled: Extension, variant: str, traditional: bool, dims: int, offset: Any) -> None:
    x = random(2, 5, 3, 72).transpose(0, 2, 1, 3)
    at = mx.array(offset) if isinstance(offset, list) else offset
    theirs = mx.fast.rope(x, dims, traditional=traditional, base=10000.0, scale=0.5, offset=at)
    assert apart(compiled.rope(x, dims, traditional, 10000.0, 0.5, at), theirs) < WITHIN
    wavelengths = mx.array(np.geomspace(1, 3000, dims // 2).astype(np.float32))
    theirs = mx.fast.rope(x, dims, traditional=traditional, base=None, scale=1.0, offset=at, freqs=wavelengths)
    assert apart(compiled.rope(x, dims, traditional, 0.0, 1.0, at, wavelengths), theirs) < WITHIN


def test_rope_far_into_a_context_is_that_of_float32_angles(compiled: Extension) -> None:
    x = random(1, 1, 1, 8)
    position, frequencies = np.float32(100_003), np.array([1.0, 1e-1, 1e-2, 1e-3], np.float32)
    angles = (position * frequencies).astype(np.float64)
    row = np.array(x[0, 0, 0]).astype(np.float64)
    a, b = row[:4], row[4:]
    expected = np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)])
    assert apart(compiled.rope(x, 8, False, 10000.0, 1.0, 100_003)[0, 0, 0], expected) < 1e-6


def test_rope_takes_offsets_that_are_not_computed_yet(compiled: Extension) -> None:
    x, offset = random(2, 2, 1, 16), mx.array([4, 9])
    expected = mx.fast.rope(x, 16, traditional=False, base=100.0, scale=1.0, offset=mx.array([5, 10]))
    assert apart(compiled.rope(x, 16, False, 100.0, 1.0, offset + 1), expected) < WITHIN


@pytest.mark.parametrize(("activation", "theirs"), list(enumerate([silu, gelu, gelu_approx])))
def test_gated_equals_mlx(
    compiled: Extension, variant: str, activation: int, theirs: Callable[[mx.array], mx.array]
) -> None:
    gate, up = random(3, 7, 50, spread=4.0), random(3, 7, 50, seed=1)
    assert apart(compiled.gated(gate, up, activation), theirs(gate) * up) < WITHIN
    both = random(3, 100, spread=3.0)
    left, right = both[:, :50], both[:, 50:]
    assert apart(compiled.gated(left, right, activation), theirs(left) * right) < WITHIN
    extremes = mx.array([[-1e30, -200.0, 0.0, 200.0, 1e4]])
    assert np.isfinite(np.array(compiled.gated(extremes, mx.ones_like(extremes), activation))).all()


@pytest.mark.parametrize("vocabulary", [1, 63, 16_385, 262_144])
def test_log_sum_exp_and_softmax_of_logits(compiled: Extension, variant: str, vocabulary: int) -> None:
    logits = random(2, vocabulary, spread=5.0)
    exact = np.array(logits).astype(np.float64)
    terms = np.exp(exact - exact.max(axis=-1, keepdims=True))
    expected = np.log(terms.sum(axis=-1, keepdims=True)) + exact.max(axis=-1, keepdims=True)
    assert apart(compiled.log_sum_exp(logits), expected) < 1e-6
    assert apart(compiled.softmax(logits), terms / terms.sum(axis=-1, keepdims=True)) < WITHIN


def test_log_sum_exp_of_masked_logits(compiled: Extension) -> None:
    logits = mx.array([[-np.inf, 1.0, -np.inf], [-np.inf, -np.inf, -np.inf]])
    np.testing.assert_array_equal(compiled.log_sum_exp(logits), [[1.0], [-np.inf]])


def test_half_precision_comes_back_as_it_went_in(compiled: Extension) -> None:
    x = random(1, 2, 3, 16).astype(mx.bfloat16)
    assert compiled.rms_norm(x, None, 1e-5).dtype == mx.bfloat16
    assert compiled.rope(x, 16, False, 100.0, 1.0, 2).dtype == mx.bfloat16
    assert compiled.gated(x, x, 0).dtype == mx.bfloat16


@pytest.mark.parametrize("width", [3, 15, 64, 70, 384])
def test_layer_norm_of_a_sum_equals_mlx(compiled: Extension, variant: str, width: int) -> None:
    x, added = random(3, 5, width) + 4.0, random(3, 5, width, seed=1)
    weight, bias = random(width, seed=2), random(width, seed=3)
    wanted = mx.fast.layer_norm(x + added, weight, bias, 1e-5)
    assert apart(compiled.layer_norm(x, added, weight, bias, 1e-5), wanted) < WITHIN
    turned = x.swapaxes(0, 1)
    wanted = mx.fast.layer_norm(turned, weight, None, 1e-5)
    assert apart(compiled.layer_norm(turned, None, weight, None, 1e-5), wanted) < WITHIN


@pytest.mark.parametrize(("activation", "theirs"), list(enumerate([silu, gelu, gelu_approx])))
def test_dense_adds_its_bias_before_the_activation(
    compiled: Extension, variant: str, activation: int, theirs: Callable[[Any], Any]
) -> None:
    x, weight, bias = random(7, 40), random(53, 40, seed=1), random(53, seed=2)
    blocks, sums = weight.view(mx.uint8), x @ weight.T
    assert apart(compiled.dense(x, blocks, 0, bias, activation), theirs(sums + bias)) < WITHIN
    assert apart(compiled.dense(x, blocks, 0, bias), sums + bias) < WITHIN
    assert apart(compiled.dense(x, blocks, 0), sums) < WITHIN
