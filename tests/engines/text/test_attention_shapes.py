"""Prompts in few shapes: the same answers as without padding, and how many shapes there are."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf.model import build_model
from engines.header import read_header
from engines.text import adapt
from engines.text.adapt import FusedAttention
from engines.text.attention_shapes import MOST_KEYS, PaddedAttention, causal_padding, masked_padding, read_usual_prompts
from tests.engines.gguf.helpers_tiny import FAMILIES, tiny_model

STOCK = mx.fast.scaled_dot_product_attention
LENGTHS = ((2, 2), (3, 7), (5, 300), (128, 128), (130, 130), (200, 456), (256, 512), (300, 300), (9, 600), (260, 780))


class Noted:
    """MLX's own attention, and the shapes and masks that it is given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.masks: list[Any] = []

    def __call__(self, q: mx.array, k: mx.array, v: mx.array, *, mask: Any = None, **others: Any) -> Any:
        kind = mask if mask is None or isinstance(mask, str) else mask.shape
        self.calls.append((q.shape, k.shape, v.shape, kind))
        self.masks.append(mask)
        return STOCK(q, k, v, mask=mask, **others)


def drawn(queries: int, keys: int, rows: int = 1, heads: tuple[int, int] = (4, 2), width: int = 16) -> list[mx.array]:
    """Queries, keys and values; heads in groups, keys and values slices of longer caches."""
    rng = np.random.default_rng(queries * 1000 + keys)
    shapes = [(rows, heads[0], queries, width), *[(rows, heads[1], keys + 5, width)] * 2]
    q, k, v = (mx.array(rng.standard_normal(shape).astype(np.float32)) for shape in shapes)
    return [q, k[:, :, :keys], v[:, :, :keys]]


def masks(rows: int, queries: int, keys: int) -> list[Any]:
    """Of every kind that models give."""
    window = create_causal_mask(queries, keys - queries, window_size=max(2, keys // 2))
    padded = create_causal_mask(queries, keys - queries, left_padding=mx.minimum(mx.arange(rows), keys - queries))
    bias = mx.where(window, mx.array(0.5), mx.array(-float("inf")))
    last = (mx.arange(keys) != 1)[None, None, None]
    return ["causal", None, window, padded, bias, last]


def apart(a: mx.array, b: mx.array) -> float:
    return float(np.abs(np.array(a) - np.array(b)).max())


@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
@pytest.mark.parametrize("rows", [1, 3])
def test_padded_attention_answers_what_mlx_does(queries: int, keys: int, rows: int) -> None:
    noted = Noted()
    padded = PaddedAttention(noted, (mx.float32,))
    q, k, v = drawn(queries, keys, rows)
    for mask in masks(rows, queries, keys):
        wanted = STOCK(q, k, v, scale=0.25, mask=mask)
        got = padded(q, k, v, scale=0.25, mask=mask)
        assert got.shape == wanted.shape
        assert apart(got, wanted) < 2e-6
        q_shape, k_shape, v_shape, _ = noted.calls[-1]
        assert k_shape == v_shape and q_shape[2] % 128 == 0 and k_shape[2] % 128 == 0


@pytest.mark.skipif(not mx.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize(("queries", "keys"), [*LENGTHS, (700, 3000)])
def test_padded_attention_answers_what_mlx_does_on_cuda(queries: int, keys: int, dtype: mx.Dtype) -> None:
    noted = Noted()
    q, k, v = (x.astype(dtype) for x in drawn(queries, keys, 2, width=64))
    for mask in masks(2, queries, keys):
        mask = mask.astype(dtype) if isinstance(mask, mx.array) and mask.dtype == mx.float32 else mask
        got, wanted = (
            attention(q, k, v, scale=0.125, mask=mask).astype(mx.float32)
            for attention in (PaddedAttention(noted), STOCK)
        )
        assert noted.calls[-1][1][2] % 128 == 0
        assert apart(got, wanted) < (1e-2 if dtype == mx.float16 else 5e-2)


def test_mask_is_made_once_for_the_layers_of_a_pass_and_dropped_with_it() -> None:
    noted = Noted()
    padded = PaddedAttention(noted, (mx.float32,))
    q, k, v = drawn(20, 50)
    mask = create_causal_mask(20, 30, window_size=9)
    for _ in range(3):
        padded(q, k, v, scale=1.0, mask=mask)
    assert noted.masks[0] is noted.masks[1] is noted.masks[2]
    other = create_causal_mask(20, 30, window_size=8)
    assert apart(padded(q, k, v, scale=1.0, mask=other), STOCK(q, k, v, scale=1.0, mask=other)) < 2e-6
    del mask
    gc.collect()
    assert padded._masked is noted.masks[-1]  # the end of the mask before is no end of this one's
    del other
    gc.collect()
    assert padded._masked is None


def test_attention_that_cudnn_does_not_compute_is_left_alone() -> None:
    noted = Noted()
    padded = PaddedAttention(noted)
    half = [x.astype(mx.float16) for x in drawn(5, 7)]
    padded(*half, scale=1.0, mask="causal")
    assert noted.calls[-1] == ((1, 4, 128, 16), (1, 2, 128, 16), (1, 2, 128, 16), "causal")
    left: list[tuple[list[mx.array], dict[str, Any]]] = [
        (drawn(5, 7), {"mask": "causal"}),  # float32
        ([x.astype(mx.float16) for x in drawn(1, 7)], {}),
        ([x.astype(mx.float16) for x in drawn(5, 7, width=136)], {"mask": "causal"}),
        ([x.astype(mx.float16) for x in drawn(5, 7, width=12)], {"mask": "causal"}),
        (half, {"mask": "causal", "sinks": mx.zeros(4, mx.float16)}),
        (half, {"mask": "causal", "stream": mx.cpu}),
    ]
    for arrays, how in left:
        padded(*arrays, scale=1.0, **how)
        assert noted.calls[-1][0] == arrays[0].shape and noted.calls[-1][1] == arrays[1].shape
    long = [mx.zeros((1, 1, tokens, 8), mx.float16) for tokens in (2, MOST_KEYS + 1, MOST_KEYS + 1)]
    padded(*long, scale=1.0, mask="causal")  # lazy: nothing is computed
    assert noted.calls[-1][1] == long[1].shape
    wide = [mx.zeros((64, 32, tokens, 8), mx.float16) for tokens in (1000, 1000, 1000)]
    padded(*wide, scale=1.0)  # a mask of floats for each head would be larger than it is worth
    assert noted.calls[-1][0] == wide[0].shape


def test_lengths_in_any_chunks_come_in_few_shapes() -> None:
    rng = random.Random(2)
    causal, masked = set(), set()
    for _ in range(2000):
        done, length = 0, rng.randint(2, 600)
        while done < length:
            chunk = min(length - done, rng.randint(1, 600))
            done += chunk
            padding = causal_padding(chunk, done)
            causal.add((padding.before + chunk + padding.after, done + padding.keys))
            padding = masked_padding(chunk, done)
            masked.add((chunk + padding.after, done + padding.keys))
    assert len(causal) <= 7 and len(masked) <= 14


def test_long_prompts_are_padded_by_little() -> None:
    rng = random.Random(3)
    shapes = set()
    for _ in range(5000):
        keys = rng.randint(1, MOST_KEYS)
        queries = min(keys, rng.randint(1, 2048))
        padding = causal_padding(queries, keys)
        total = keys + padding.keys
        assert padding.keys == padding.after and 0 <= padding.before <= keys - queries
        assert total == 128 or total < keys + min(keys, max(256, keys / 4))
        shapes.add((padding.before + queries + padding.after, total))
    assert len(shapes) <= 256  # as many graphs as are kept


@pytest.fixture
def padded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Noted]:
    """What the adapter opens on CUDA, here for float32."""
    noted, before = Noted(), mx.fast.scaled_dot_product_attention
    monkeypatch.setattr(adapt, "_replacement", lambda stock: PaddedAttention(noted, (mx.float32,)))
    with FusedAttention():
        yield noted
    assert mx.fast.scaled_dot_product_attention is before


@pytest.mark.parametrize("family", FAMILIES)
def test_models_read_prompts_in_chunks_as_without_padding(family: str, tmp_path: Path, padded: Noted) -> None:
    model = build_model(read_header(tiny_model(family, quant="F32").write(tmp_path / "tiny.gguf"))).model
    tokens = mx.array(np.random.default_rng(1).integers(3, 352, (1, 150)))

    def read() -> np.ndarray:
        cache = make_prompt_cache(model)
        parts = [model(tokens[:, a:b], cache=cache) for a, b in [(0, 3), (3, 100), (100, 149), (149, 150)]]
        return np.array(mx.concatenate(parts, axis=1))

    got = read()
    seen = {call for call in padded.calls if call[0][2] > 1}
    assert seen and all(call[0][2] in (128, 256) and call[1][2] in (128, 256) for call in seen)
    mx.fast.scaled_dot_product_attention, here = STOCK, mx.fast.scaled_dot_product_attention
    wanted = read()
    mx.fast.scaled_dot_product_attention = here
    assert np.abs(got - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_usual_prompts_are_read_in_the_shapes_that_short_ones_come_in(tmp_path: Path, padded: Noted) -> None:
    model = build_model(read_header(tiny_model("llama", quant="F32").write(tmp_path / "tiny.gguf"))).model
    read_usual_prompts(model)
    read = {(call[0][2], call[1][2]) for call in padded.calls}
    assert read == {(128, 128), (256, 256), (512, 512)}
    padded.calls.clear()
    cache = make_prompt_cache(model)
    for tokens in (77, 201, 40, 190):
        mx.eval(model(mx.zeros((1, tokens), mx.uint32), cache=cache))
    assert {(call[0][2], call[1][2]) for call in padded.calls} <= read
