"""Victims: fewest models, then the set whose most recently used member is oldest, then least bytes."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.residency.eviction import POLICIES, Candidate, victims


def idle(*members: tuple[str, int, float]) -> list[Candidate]:
    return [Candidate(key, size, last_used) for key, size, last_used in members]


def test_victims_nothing_needed_is_nobody() -> None:
    assert victims(idle(("a", 4, 1)), 0) == ()
    assert victims([], -3) == ()


def test_victims_not_enough_is_none() -> None:
    assert victims(idle(("a", 4, 1), ("b", 4, 2)), 9) is None


@pytest.mark.parametrize("policy", POLICIES)
def test_victims_frees_enough(policy: str) -> None:
    chosen = victims(idle(("a", 4, 1), ("b", 4, 2)), 8, policy)
    assert chosen is not None and set(chosen) == {"a", "b"}


def test_victims_unknown_policy_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        victims(idle(("a", 4, 1)), 1, "random")


def test_lru_takes_one_recent_model_rather_than_two_old_ones() -> None:
    assert victims(idle(("old", 3, 1), ("older", 3, 0), ("big", 6, 9)), 5) == ("big",)


def test_lru_of_equal_count_takes_the_oldest() -> None:
    assert victims(idle(("new", 4, 9), ("old", 6, 1)), 4) == ("old",)


def test_lru_compares_the_most_recently_used_members() -> None:
    # {a, c} and {b, c} free enough; so do pairs with d, which was used last.
    members = idle(("a", 5, 1), ("b", 4, 2), ("c", 6, 3), ("d", 9, 4))
    assert victims(members, 10) == ("b", "c")


def test_lru_of_equal_age_takes_least_bytes() -> None:
    assert victims(idle(("a", 8, 1), ("b", 5, 1), ("c", 6, 1)), 5) == ("b",)


def test_largest_takes_the_largest_first() -> None:
    assert victims(idle(("old", 4, 1), ("big", 6, 9), ("mid", 5, 5)), 10, "largest") == ("big", "mid")


def test_priority_spares_the_higher_while_the_lower_suffice() -> None:
    members = [
        Candidate("low", 3, 9, priority=0),
        Candidate("low2", 3, 8, priority=0),
        Candidate("high", 6, 1, priority=2),
    ]
    assert victims(members, 6, "priority") == ("low2", "low")
    assert victims(members, 7, "priority") == ("high", "low2")


SETS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5)), min_size=1, max_size=8)


@settings(derandomize=True)
@given(SETS, st.integers(1, 60))
def test_lru_equals_the_rule_written_out(members: list[tuple[int, int]], needed: int) -> None:
    candidates = [Candidate(f"m{i}", size, float(age)) for i, (size, age) in enumerate(members)]
    enough = [
        group
        for count in range(1, len(candidates) + 1)
        for group in combinations(candidates, count)
        if sum(c.bytes for c in group) >= needed
    ]
    chosen = victims(candidates, needed)
    if not enough:
        assert chosen is None
        return
    best = min((len(g), max(c.last_used for c in g), sum(c.bytes for c in g)) for g in enough)
    assert chosen is not None
    group = [c for c in candidates if c.key in chosen]
    assert (len(group), max(c.last_used for c in group), sum(c.bytes for c in group)) == best


def test_lru_of_many_models_stays_quick_and_exact_in_count_and_age() -> None:
    members = [Candidate(f"m{i}", 100 + i * i % 37, float(i)) for i in range(60)]
    chosen = victims(members, 2000)
    assert chosen is not None
    fewest = 1
    largest = sorted((c.bytes for c in members), reverse=True)
    while sum(largest[:fewest]) < 2000:
        fewest += 1
    assert len(chosen) == fewest
    assert sum(c.bytes for c in members if c.key in chosen) >= 2000
