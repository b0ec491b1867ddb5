"""The order in which rows wait."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.scheduling.waiting import HANDICAP_S, PRIORITIES, Priority, WaitingRows


def waiting(*rows: tuple[int, Priority, float]) -> WaitingRows[str]:
    queue = WaitingRows[str]()
    for row_id, priority, now in rows:
        queue.add(row_id, f"row {row_id}", priority, now)
    return queue


def test_better_classes_go_first_and_a_class_in_order_of_arrival() -> None:
    queue = waiting((1, "batch", 0), (2, "normal", 1), (3, "interactive", 2), (4, "normal", 3), (5, "interactive", 4))
    assert queue.ids() == [3, 5, 2, 4, 1]
    assert list(queue) == [f"row {i}" for i in (3, 5, 2, 4, 1)]
    assert queue.by_priority() == {"interactive": 2, "normal": 2, "batch": 1}
    assert len(queue) == 5 and 3 in queue and 6 not in queue


@pytest.mark.parametrize("priority", ["normal", "batch"])
def test_a_row_is_overtaken_only_by_those_that_come_within_its_handicap(priority: Priority) -> None:
    handicap = HANDICAP_S[priority]
    queue = waiting((1, priority, 0.0), (2, "interactive", handicap - 0.1), (3, "interactive", handicap + 0.1))
    assert queue.ids() == [2, 1, 3]


def test_rows_that_were_preempted_stand_before_their_class_and_not_before_a_better_one() -> None:
    queue = waiting((1, "normal", 0), (2, "interactive", 1))
    queue.put_back(8, "younger", "normal", 2)
    queue.put_back(7, "older", "normal", 2)
    queue.put_back(9, "only", "batch", 2)
    assert queue.ids() == [2, 7, 8, 1, 9]


def test_a_preempted_row_waits_no_longer_than_one_that_comes_now() -> None:
    queue = WaitingRows[str]()
    queue.put_back(1, "back", "normal", 100.0)
    queue.add(2, "new", "normal", 100.0)
    assert queue.ids() == [1, 2]


def test_rows_leave_and_are_replaced_in_place_also_while_it_is_walked() -> None:
    queue = waiting((1, "normal", 0), (2, "normal", 1), (3, "normal", 2))
    for item in queue:
        if item == "row 1":
            assert queue.remove(1) == "row 1" and queue.remove(1) is None
            queue.replace(2, "other")
    assert list(queue) == ["other", "row 3"]
    assert queue.get(2) == "other" and queue.get(1) is None
    with pytest.raises(KeyError):
        queue.replace(1, "gone")
    with pytest.raises(ValueError, match="waits already"):
        queue.add(2, "twice", "batch", 9)
    queue.clear()
    assert len(queue) == 0 and list(queue) == []


@settings(max_examples=60)
@given(arrivals=st.lists(st.tuples(st.sampled_from(PRIORITIES), st.floats(0, 20), st.booleans()), max_size=30))
def test_nobody_is_overtaken_by_who_comes_after_its_handicap(arrivals: list[tuple[Priority, float, bool]]) -> None:
    """Interactive rows come faster than rows are taken; all the others are taken nevertheless."""
    queue = WaitingRows[float]()
    now, due, preempted = 0.0, dict[int, float](), set[int]()
    for row_id, (priority, gap, back) in enumerate(arrivals):
        now += gap
        (queue.put_back if back else queue.add)(row_id, now, priority, now)
        due[row_id] = now + HANDICAP_S[priority]
        preempted |= {row_id} if back else set()  # they had begun: nobody waits for them a second time
    for newcomer in range(1000, 2000):
        now += 0.5
        queue.add(newcomer, now, "interactive", now)
        if newcomer % 2 == 0:
            first = queue.ids()[0]
            arrived = queue.remove(first)
            assert arrived is not None and (first in preempted or arrived <= min(due.values(), default=now))
            due.pop(first, None)
    assert not due
