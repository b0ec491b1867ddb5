"""Rows that wait for memory."""

from __future__ import annotations

from engines.scheduling.deferral import DeferredRows


def test_a_row_is_overdue_at_the_ceiling_of_one_unbroken_wait() -> None:
    deferred = DeferredRows(30.0)
    deferred.update([1, 2], 100.0)
    deferred.update([1], 120.0)  # 2 was not, for a while
    deferred.update([1, 2], 125.0)
    assert deferred.overdue(1, 130.0) and not deferred.overdue(1, 129.9)
    assert not deferred.overdue(2, 130.0) and deferred.overdue(2, 155.0)
    assert (deferred.waited_s(1, 130.0), deferred.waited_s(2, 130.0)) == (30.0, 5.0)
    assert sorted(deferred.ids) == [1, 2] and len(deferred) == 2 and 1 in deferred and 3 not in deferred


def test_who_is_not_deferred_is_never_overdue() -> None:
    deferred = DeferredRows(0.0)
    assert not deferred.overdue(1, 10.0) and deferred.waited_s(1, 10.0) == 0.0
    deferred.update([1], 10.0)
    assert deferred.overdue(1, 10.0)
    deferred.update([], 11.0)
    assert not deferred.overdue(1, 99.0)
