"""Who sees whom, and what it takes in memory to say so."""

from __future__ import annotations

import mlx.core as mx

from engines.encoders.masks import Masks
from engines.encoders.shape import Layer, Shape


def test_mask_of_a_window_takes_no_more_than_a_row_is_charged_for_it() -> None:
    length, window = 4096, 64
    shape = Shape(
        layers=(Layer(window=window),),
        width=8,
        heads=1,
        kv_heads=1,
        head_width=8,
        feed_forward=8,
        vocabulary=8,
        context=length,
        norm="layer",
        epsilon=1e-5,
        activation="gelu",
    )
    charged = shape.row_bytes(length, 4)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    mask = Masks(shape, mx.array([length], mx.int32), length, padded=False).of(window)
    assert mask is not None
    mx.eval(mask)
    assert mx.get_peak_memory() - before <= charged
    row = mask[1000]
    assert row[1000 - window].item() and row[1000 + window].item()
    assert row.sum().item() == 2 * window + 1
