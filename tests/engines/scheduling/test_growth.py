from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.scheduling.growth import OPEN_ANSWER, RowLengths, asked, asked_ahead

ROW = RowLengths(least=100, expected=400, end=5000)


@pytest.mark.parametrize(
    ("row", "longest", "length"),
    [
        (ROW, None, None),
        (ROW, 100, None),  # it may start, though not grow to what is expected
        (ROW, 99, 400),
        (RowLengths(100, 400, 5000, most=300), 99, 300),
        (RowLengths(100, 400, 5000, most=100), 99, 100),
    ],
)
def test_a_waiting_row_asks_for_what_is_expected_of_it(
    row: RowLengths, longest: int | None, length: int | None
) -> None:
    assert asked(row, longest) == length


@pytest.mark.parametrize(
    ("row", "held", "longest", "length"),
    [
        (ROW, 10, None, None),
        (ROW, 872, 1000, None),  # 128 tokens before the end
        (ROW, 873, 1000, 873 + OPEN_ANSWER),
        (ROW, 4990, 5000, None),  # it ends within the grant
        (ROW, 4500, 4600, 5000),
        (RowLengths(100, 400, 5000, most=1200), 900, 1000, 1200),
        (RowLengths(100, 400, 5000, most=1000), 900, 1000, None),  # denied
    ],
)
def test_a_running_row_asks_ahead(row: RowLengths, held: int, longest: int | None, length: int | None) -> None:
    assert asked_ahead(row, held, longest) == length


@given(
    least=st.integers(1, 2000),
    more=st.integers(0, 2000),
    rest=st.integers(0, 2000),
    most=st.one_of(st.none(), st.integers(0, 6000)),
    held=st.integers(0, 6000),
    longest=st.integers(0, 6000),
)
def test_growth_is_asked_for_only_where_it_helps(
    least: int, more: int, rest: int, most: int | None, held: int, longest: int
) -> None:
    row = RowLengths(least, least + more, least + more + rest, most)
    for wanted in (asked(row, longest), asked_ahead(row, min(held, row.end), longest)):
        assert wanted is None or longest < wanted <= max(row.end, least)
