"""Which rows go together, and whose turn it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engines.encoders.batches import FREE_PADDING, PADDING_SHARE, BatchLimits, Pace, cut_batch, leader

WIDE = BatchLimits(rows=64, places=4096)


def test_batch_takes_neighbours_of_the_lead_and_leaves_what_would_be_padding() -> None:
    lengths = [4, 5, 6, 200, 205, 210, 900]
    assert cut_batch(lengths, 4, WIDE) == (3, 6)
    assert cut_batch(lengths, 0, WIDE) == (0, 3)
    assert cut_batch(lengths, 6, WIDE) == (6, 7)


def test_batch_ends_at_its_limits_but_for_a_lead_that_is_larger() -> None:
    assert cut_batch([10] * 9, 4, BatchLimits(rows=4, places=4096)) in {(begin, begin + 4) for begin in range(1, 5)}
    begin, end = cut_batch([10] * 9, 4, BatchLimits(rows=64, places=35))
    assert end - begin == 3
    assert cut_batch([10, 900], 1, BatchLimits(rows=64, places=100)) == (1, 2)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60).map(sorted), st.data())
def test_batch_holds_its_lead_and_little_padding(lengths: list[int], data: st.DataObject) -> None:
    lead = data.draw(st.integers(0, len(lengths) - 1))
    begin, end = cut_batch(lengths, lead, WIDE)
    assert 0 <= begin <= lead < end <= len(lengths)
    places = (end - begin) * lengths[end - 1]
    assert end - begin == 1 or (places <= WIDE.places and end - begin <= WIDE.rows)
    assert places - sum(lengths[begin:end]) <= max(PADDING_SHARE * places, FREE_PADDING)


def test_leader_is_the_first_and_the_shortest_in_turn() -> None:
    left = [500, 30, 7, 90]
    assert [leader(left, turn) for turn in range(4)] == [0, 2, 0, 2]


def test_pace_learns_and_is_bounded() -> None:
    pace = Pace(0.25, rate=4000.0)
    assert pace.tokens == 1000
    for _ in range(50):
        pace.took(1000, 1.0)
    assert 249 < pace.expected_s(1000) * 250 < 260 and pace.tokens == 256
    pace.took(3, 10.0)  # too few to say anything
    assert pace.tokens == 256
