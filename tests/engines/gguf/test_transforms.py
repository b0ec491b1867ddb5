"""Transforms of slots: on blocks as on floats, and refusals of shapes that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from engines.gguf.quants import quant_type
from engines.gguf.transforms import compose, expert_rows, item, log_negative, rows
from tests.engines.gguf.helpers_blocks import random_blocks

CONFIG = {"heads": 2, "width": 4}


def after_heads(config: Mapping[str, Any]) -> int:
    return int(config["heads"] * config["width"])


def nothing(config: Mapping[str, Any]) -> int:
    return 0


def twelve(config: Mapping[str, Any]) -> int:
    return 12


def test_rows_of_blocks_are_rows_of_weights() -> None:
    quant = quant_type("Q4_0")
    blocks = random_blocks(quant, 12, 64)
    taken = rows(nothing, after_heads, twelve)(mx.array(blocks), CONFIG)
    np.testing.assert_array_equal(np.array(quant.dequantize(taken)), quant.dequantize_numpy(blocks)[:8])


def test_rows_of_experts_and_then_one_expert() -> None:
    array = mx.arange(3 * 12 * 2).reshape(3, 12, 2)
    taken = compose(expert_rows(nothing, after_heads, twelve), item(2, 3))(array, CONFIG)
    np.testing.assert_array_equal(np.array(taken), np.array(array)[2, :8])


def test_decays_come_back() -> None:
    decays = mx.array([-2.0, 0.5])
    np.testing.assert_allclose(np.array(log_negative(-decays.exp(), CONFIG)), np.array(decays), rtol=1e-6)


@pytest.mark.parametrize(
    "transform", [rows(nothing, after_heads, twelve), expert_rows(nothing, after_heads, twelve), item(0, 7)]
)
def test_shapes_that_do_not_fit_are_refused(transform: Any) -> None:
    for size in (5, 13):  # of which there are too few, and some for nobody
        with pytest.raises(ValueError, match=r"where (?:12|7) belong"):
            transform(mx.zeros((size, size, 4)), CONFIG)
