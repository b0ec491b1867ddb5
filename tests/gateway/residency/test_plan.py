"""Plans, sizes and grants: pure functions of numbers."""

from __future__ import annotations

from typing import Any

import pytest

from engines.footprint import Footprint
from gateway.errors import ModelTooLarge, NoRoomBesidePinned
from gateway.residency.eviction import Candidate
from gateway.residency.plan import Blocked, Drain, Evict, Refuse, Start, View, Wait, choose_drain, decide, fits_beside
from gateway.residency.sizes import Sizes

SIZES = Sizes(static=40, full=32, row=8, floor=2)  # a row of 8192 tokens takes 8, one of 2048 takes 2


def view(**changed: Any) -> View:
    return View(**{"model": "m", "sizes": SIZES, "total": 100, "available": 0, **changed})


def test_sizes_default_grant_is_four_rows() -> None:
    footprint = Footprint(1000, 10, 0, context=32768)
    assert Sizes.of(footprint, None, 5) == Sizes(1005, 4 * 81920, 81920, 20480)


def test_sizes_short_context_bounds_the_rows() -> None:
    assert Sizes.of(Footprint(1000, 10, 0, context=1024), None) == Sizes(1000, 40960, 10240, 10240)


def test_sizes_an_entrys_own_grant_does_not_shrink() -> None:
    assert Sizes.of(Footprint(1000, 10, 0, context=32768), 777) == Sizes(1000, 777, 777, 777)


@pytest.mark.parametrize(
    ("available", "grant"),
    [(100, 32), (72, 32), (60, 20), (48, 8)],
    ids=["plenty", "exactly full", "shrunk", "one row"],
)
def test_decide_starts_with_the_largest_grant_that_fits(available: int, grant: int) -> None:
    assert decide(view(available=available)) == Start(grant)


def test_decide_waits_for_what_is_being_torn_down() -> None:
    assert decide(view(available=20, pending=28)) == Wait(48)


def test_decide_evicts_before_a_grant_shrinks_below_one_row() -> None:
    idle = (Candidate("a", 5, 1.0), Candidate("b", 30, 2.0))
    assert decide(view(available=44, candidates=idle)) == Evict(("a",), 48)


def test_decide_counts_pending_bytes_before_it_evicts() -> None:
    idle = (Candidate("a", 30, 1.0), Candidate("b", 10, 2.0))
    assert decide(view(available=20, pending=20, candidates=idle)) == Evict(("a",), 48)
    assert decide(view(available=28, pending=20, candidates=idle)) == Wait(48)


def test_decide_takes_a_shorter_row_when_every_idle_model_would_not_do() -> None:
    idle = (Candidate("a", 2, 1.0), Candidate("b", 1, 2.0))
    assert decide(view(available=42, candidates=idle)) == Evict(("a", "b"), 45)
    assert decide(view(available=42, pending=3)) == Wait(45)
    assert decide(view(available=45)) == Start(5)


def test_decide_is_blocked_below_the_shortest_row() -> None:
    assert decide(view(available=41)) == Blocked(48)


def test_decide_refuses_what_is_larger_than_the_budget_and_names_bytes_and_pins() -> None:
    decision = decide(view(total=41, pins=(("pinned", 10),), candidates=(Candidate("a", 40, 1.0),)))
    assert isinstance(decision, Refuse) and isinstance(decision.error, ModelTooLarge)
    for part in ("42 bytes", "41 bytes", "pinned", "10 bytes"):
        assert part in decision.error.message


def test_decide_refuses_what_never_fits_beside_pins() -> None:
    decision = decide(view(total=100, pins=(("p", 50), ("q", 9)), available=41))
    assert isinstance(decision, Refuse) and isinstance(decision.error, NoRoomBesidePinned)
    for part in ("p (50 B)", "q (9 B)", "41 of 100", "42 bytes"):
        assert part in decision.error.message


def test_decide_pins_that_leave_less_than_a_row_shorten_it() -> None:
    assert decide(view(total=100, pins=(("p", 55),), available=45)) == Start(5)


def test_fits_beside_never_shrinks_below_one_row() -> None:
    assert fits_beside(view(available=48)) == 8
    assert fits_beside(view(available=47)) is None
    assert fits_beside(view(available=47, total=41)) is None


def leased(*members: tuple[str, int, int, float]) -> list[Candidate]:
    return [Candidate(key, size, last_used, leases=leases) for key, size, leases, last_used in members]


def test_choose_drain_prefers_fewest_leases_then_least_recently_used() -> None:
    members = leased(("busy", 50, 3, 1.0), ("recent", 50, 1, 9.0), ("old", 50, 1, 5.0))
    assert choose_drain(40, [], members) == Drain(("old",), ())


def test_choose_drain_takes_idle_models_along() -> None:
    members = leased(("v", 30, 1, 1.0))
    assert choose_drain(40, [Candidate("i", 20, 1.0), Candidate("j", 2, 0.0)], members) == Drain(("v",), ("i",))


def test_choose_drain_passes_over_one_that_does_not_help() -> None:
    members = leased(("small", 5, 1, 1.0), ("large", 50, 2, 2.0))
    assert choose_drain(40, [], members) == Drain(("large",), ())


def test_choose_drain_takes_several_when_one_would_not_do() -> None:
    members = leased(("a", 30, 1, 1.0), ("b", 30, 2, 2.0), ("c", 30, 3, 3.0))
    assert choose_drain(55, [], members) == Drain(("a", "b"), ())
    assert choose_drain(91, [], members) is None


def test_decide_evicts_no_more_than_pins_leave_use_for() -> None:
    idle = (Candidate("a", 10, 1.0), Candidate("b", 30, 2.0))
    assert decide(view(total=100, pins=(("p", 55),), available=35, candidates=idle)) == Evict(("a",), 45)
