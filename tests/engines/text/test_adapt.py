"""The one attribute of MLX that is replaced: what it was comes back, whoever closes first."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import mlx.core as mx
import pytest

from engines.text import adapt
from engines.text.adapt import FusedAttention


def current() -> Any:
    return mx.fast.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replacement is another function, whatever this machine has."""

    def replacement(stock: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arrays: Any, **options: Any) -> Any:
            return stock(*arrays, **options)

        return call

    monkeypatch.setattr(adapt, "_replacement", replacement)


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_what_was_there_is_back_after_the_last_of_several_in_any_order(order: tuple[int, ...]) -> None:
    before = current()
    adapted = [FusedAttention() for _ in range(3)]
    replaced = []
    for each in adapted:
        each.open()
        replaced.append(current())
    assert len({id(one) for one in (before, *replaced)}) == 4
    still_open = {0, 1, 2}
    for closed in order:
        adapted[closed].close()
        still_open.remove(closed)
        assert current() is (replaced[max(still_open)] if still_open else before)


def test_opening_and_closing_again_change_nothing() -> None:
    before = current()
    adapted = FusedAttention()
    adapted.open()
    replaced = current()
    adapted.open()
    assert current() is replaced
    adapted.close()
    adapted.close()
    assert current() is before


def test_where_there_is_nothing_faster_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapt, "_replacement", lambda stock: None)
    before = current()
    with FusedAttention():
        assert current() is before
    assert current() is before


def test_an_error_within_puts_back_what_was_there() -> None:
    before = current()
    with pytest.raises(RuntimeError), FusedAttention():
        raise RuntimeError
    assert current() is before
