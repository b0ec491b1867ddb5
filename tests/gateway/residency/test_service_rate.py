"""The rate at which requests end, and the Retry-After made of it: numbers only."""

from __future__ import annotations

import pytest

from gateway.residency.service_rate import ServiceRate, retry_after_s


def test_rate_is_unknown_before_something_was_served() -> None:
    rate = ServiceRate()
    assert rate.per_second(5.0) is None
    rate.begin(5.0)
    assert rate.per_second(9.0) is None
    rate.end(9.0, served=False)
    assert rate.per_second(9.0) is None


def test_rate_counts_ends_over_the_time_in_which_something_ran() -> None:
    rate = ServiceRate()
    for start in (100.0, 4000.0):  # an hour between them says nothing
        for _ in range(2):
            rate.begin(start)
        rate.end(start + 2.0, served=True)
        rate.end(start + 4.0, served=True)
    assert rate.per_second(9000.0) == pytest.approx(4 / 8)


def test_rate_falls_while_nothing_ends_and_forgets_what_was_long_ago() -> None:
    rate = ServiceRate()
    rate.begin(0.0)
    rate.begin(0.0)
    rate.end(1.0, served=True)
    assert rate.per_second(1.0) == pytest.approx(1.0)
    assert rate.per_second(10.0) == pytest.approx(0.1)
    now = 10.0
    for _ in range(40):  # ten a second from here
        rate.begin(now)
        now += 0.1
        rate.end(now, served=True)
    assert rate.per_second(now) == pytest.approx(10.0)


def test_rate_several_under_way_share_the_time() -> None:
    rate = ServiceRate()
    for _ in range(8):
        rate.begin(0.0)
    for _ in range(8):
        rate.end(4.0, served=True)
    assert rate.per_second(4.0) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("waiting", "per_second", "load_s", "expected"),
    [
        (16, 2.0, 0.0, 8.0),
        (16, 100.0, 0.0, 2.0),  # never less
        (64, 0.5, 0.0, 60.0),  # never more: clients ignore what is much longer
        (3, 1.0, 4.5, 7.5),
        (64, None, 0.0, 2.0),
        (64, None, 12.0, 12.0),
        (0, None, 600.0, 60.0),
    ],
)
def test_retry_after_is_when_those_who_wait_have_been_served(
    waiting: int, per_second: float | None, load_s: float, expected: float
) -> None:
    assert retry_after_s(waiting, per_second, load_s) == pytest.approx(expected)
