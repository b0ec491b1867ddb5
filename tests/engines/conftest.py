"""What every test of the engines leaves as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest


@pytest.fixture(autouse=True)
def stock_attention() -> Iterator[None]:
    """A text engine replaces MLX's attention while it lives; most tests let theirs go without closing it."""
    before = mx.fast.scaled_dot_product_attention
    yield
    mx.fast.scaled_dot_product_attention = before
