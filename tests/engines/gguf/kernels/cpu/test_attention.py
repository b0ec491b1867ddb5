"""Attention against MLX's own, and what it does not depend on."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engines.gguf.kernels.cpu import Extension
from engines.text.adapt import FusedAttention

WITHIN = 1e-5
# batch, heads, KV heads, queries, keys, width
SHAPES = [
    (1, 9, 3, 1, 70, 64),
    (2, 4, 1, 1, 1200, 256),
    (2, 4, 2, 5, 33, 40),
    (1, 8, 8, 130, 130, 64),
    (1, 9, 3, 100, 613, 64),
    (3, 4, 4, 1, 9, 72),
    (1, 2, 1, 3, 513, 16),
]


def random(*shape: int, seed: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def cached(batch: int, heads: int, keys: int, width: int, seed: int) -> mx.array:
    """As a cache answers: a view of longer memory."""
    return random(batch, heads, keys + 7, width, seed=seed)[:, :, :keys]


def masks(kind: str, batch: int, heads: int, queries: int, keys: int) -> Any:
    generator = np.random.default_rng(5)
    if kind == "bool":
        allowed = generator.random((batch, 1, queries, keys)) > 0.4
        allowed[..., -1] = True
        return mx.array(allowed)
    if kind == "window":
        rows, columns = np.arange(keys - queries, keys)[:, None], np.arange(keys)[None]
        return mx.array((columns <= rows) & (columns > rows - 20))
    if kind == "added":
        return mx.array(generator.standard_normal((heads, queries, keys)).astype(np.float32))
    return None if kind == "none" else kind


def apart(got: mx.array, expected: mx.array) -> float:
    assert got.shape == expected.shape
    return float(np.abs(np.array(got) - np.array(expected)).max() / np.abs(np.array(expected)).max())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["none", "causal", "bool", "window", "added"])
def test_attention_equals_mlx(compiled: Extension, variant: str, shape: tuple[int, ...], kind: str) -> None:
    batch, heads, kv_heads, queries, keys, width = shape
    q = random(batch, queries, heads, width, seed=1).transpose(0, 2, 1, 3)
    k, v = cached(batch, kv_heads, keys, width, 2), cached(batch, kv_heads, keys, width, 3)
    mask = masks(kind, batch, heads, queries, keys)
    expected = mx.fast.scaled_dot_product_attention(q, k, v, scale=width**-0.5, mask=mask)
    got = compiled.attention(q, k, v, width**-0.5, kind == "causal", mask if isinstance(mask, mx.array) else None)
    assert apart(got, expected) < WITHIN
    # What models do next.
    flat = got.transpose(0, 2, 1, 3).reshape(batch, queries, -1)
    assert apart(flat, expected.transpose(0, 2, 1, 3).reshape(batch, queries, -1)) < WITHIN
    assert apart(got + 1.0, expected + 1.0) < WITHIN


def test_attention_caps_scores_before_it_masks_them(compiled: Extension, variant: str) -> None:
    q, k, v = random(1, 4, 70, 24, seed=1), cached(1, 2, 90, 24, 2), cached(1, 2, 90, 24, 3)
    allowed = mx.arange(90) <= mx.arange(20, 90)[:, None]
    scores = mx.tanh(q @ mx.repeat(k, 2, axis=1).swapaxes(-1, -2) * 0.5 / 3.0) * 3.0
    weights = mx.softmax(mx.where(allowed, scores, -mx.inf), axis=-1)
    expected = weights @ mx.repeat(v, 2, axis=1)
    assert apart(compiled.attention(q, k, v, 0.5, False, allowed, 3.0), expected) < WITHIN
    assert apart(compiled.attention(q, k, v, 0.5, True, None, 3.0), expected) < WITHIN
    assert apart(compiled.attention(q, k, v, 0.5, False, allowed), expected) > 100 * WITHIN


def test_attention_takes_values_of_another_width(compiled: Extension) -> None:
    q, k, v = random(1, 4, 3, 24, seed=1), random(1, 2, 30, 24, seed=2), random(1, 2, 30, 50, seed=3)
    expected = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask="causal")
    assert apart(compiled.attention(q, k, v, 0.3, True), expected) < WITHIN


def test_attention_takes_features_that_are_not_neighbours(compiled: Extension) -> None:
    q, k, v = (random(1, 2, 8, 8, seed=seed).transpose(0, 1, 3, 2) for seed in range(3))
    expected = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3)
    assert apart(compiled.attention(q, k, v, 0.3, False), expected) < WITHIN


def test_a_query_that_may_see_no_key_gets_zeros(compiled: Extension) -> None:
    q, k, v = random(1, 2, 3, 16, seed=1), random(1, 2, 9, 16, seed=2), random(1, 2, 9, 16, seed=3)
    allowed = np.ones((1, 1, 3, 9), bool)
    allowed[:, :, 1] = False
    got = np.array(compiled.attention(q, k, v, 0.25, False, mx.array(allowed)))
    assert not got[:, :, 1].any()
    assert np.isfinite(got).all()
    assert got[:, :, [0, 2]].all()


@pytest.mark.parametrize("keys", [40, 700, 1300])
def test_attention_does_not_depend_on_padding_neighbours_or_threads(
    compiled: Extension, variant: str, keys: int
) -> None:
    """Bit for bit: a row of a left-padded batch, the row alone, and the same query as the last of a prompt."""
    padding = 37
    q, k, v = random(1, 6, 1, 64, seed=1), random(1, 2, keys, 64, seed=2), random(1, 2, keys, 64, seed=3)
    compiled.set_threads(1)
    alone = np.array(compiled.attention(q, k, v, 0.125, False))
    compiled.set_threads(3)
    np.testing.assert_array_equal(compiled.attention(q, k, v, 0.125, False), alone)

    others = (
        random(1, 6, 1, 64, seed=4),
        random(1, 2, keys + padding, 64, seed=5),
        random(1, 2, keys + padding, 64, seed=6),
    )
    pad = mx.full((1, 2, padding, 64), 3.0)
    batched_q, batched_k, batched_v = (
        mx.concatenate([others[0], q]),
        mx.concatenate([others[1], mx.concatenate([pad, k], axis=2)]),
        mx.concatenate([others[2], mx.concatenate([pad, v], axis=2)]),
    )
    allowed = np.ones((2, 1, 1, keys + padding), bool)
    allowed[1, ..., :padding] = False
    padded = np.array(compiled.attention(batched_q, batched_k, batched_v, 0.125, False, mx.array(allowed)))
    np.testing.assert_array_equal(padded[1:], alone)

    prompt = mx.concatenate([random(1, 6, 25, 64, seed=7), q], axis=2)
    np.testing.assert_array_equal(np.array(compiled.attention(prompt, k, v, 0.125, True))[:, :, -1:], alone)


def test_attention_refuses_what_does_not_fit(compiled: Extension) -> None:
    q, k = mx.zeros((1, 4, 2, 16)), mx.zeros((1, 2, 5, 16))
    for bad in [
        (q[0], k, k),
        (q, k[..., :8], k),
        (q[:, :3], k, k),
        (q.astype(mx.float16), k, k),
        (q, k, k[:, :, :4]),
    ]:
        with pytest.raises(ValueError, match="innkeeper"):
            compiled.attention(*bad, 1.0, False)
    with pytest.raises(ValueError, match="broadcast"):
        compiled.attention(q, k, k, 1.0, False, mx.zeros((3, 5), mx.bool_))


def test_adapted_attention_serves_stock_code_until_it_is_closed(compiled: Extension) -> None:
    stock = mx.fast.scaled_dot_product_attention
    q, k = random(1, 4, 3, 16, seed=1), random(1, 2, 3, 16, seed=2)
    expected = stock(q, k, k, scale=0.25, mask="causal")
    adapted = FusedAttention()
    adapted.open()
    try:
        assert mx.fast.scaled_dot_product_attention is not stock
        assert apart(mx.fast.scaled_dot_product_attention(q, k, k, scale=0.25, mask="causal"), expected) < WITHIN
        # Left to MLX: half precision, and sinks.
        half = mx.fast.scaled_dot_product_attention(*(a.astype(mx.float16) for a in (q, k, k)), scale=0.25)
        assert half.dtype == mx.float16
        with_sinks = mx.fast.scaled_dot_product_attention(q, k, k, scale=0.25, sinks=mx.zeros(4))
        assert apart(with_sinks, stock(q, k, k, scale=0.25, sinks=mx.zeros(4))) == 0
    finally:
        adapted.close()
    assert mx.fast.scaled_dot_product_attention is stock
