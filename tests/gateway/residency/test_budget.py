"""The budget: charges by generation, and the identity that holds at all times."""

from __future__ import annotations

import pytest

from gateway.residency.budget import Borrower, Budget


def test_budget_charged_and_available_add_up() -> None:
    budget = Budget(100)
    budget.charge("a", 1, "A", 40)
    budget.charge("b", 3, "B", 60)
    budget.check_integrity()
    assert (budget.charged_bytes, budget.available_bytes, budget.of_key("a"), budget.of("b", 3)) == (100, 0, 40, 60)
    assert budget.borrowers == (Borrower("a", 1, "A", 40), Borrower("b", 3, "B", 60))


def test_budget_refuses_more_than_there_is_and_a_second_charge() -> None:
    budget = Budget(100)
    budget.charge("a", 1, "A", 40)
    with pytest.raises(ValueError, match="A generation 1 is charged already"):
        budget.charge("a", 1, "A", 1)
    with pytest.raises(ValueError, match="B cannot be charged 61 bytes; 60 are available"):
        budget.charge("b", 1, "B", 61)


def test_budget_keeps_generations_apart() -> None:
    budget = Budget(100)
    budget.charge("a", 1, "A", 40)
    budget.mark_unreleased("a", 1)
    budget.charge("a", 2, "A", 40)
    assert budget.of_key("a") == 80 and budget.unreleased_bytes() == 40
    assert budget.credit("a", 1) == 40
    assert budget.of("a", 1) is None and budget.of("a", 2) == 40 and budget.unreleased_bytes() == 0


def test_budget_a_measurement_may_exceed_it() -> None:
    budget = Budget(100)
    budget.charge("a", 1, "A", 90)
    assert budget.adjust("a", 1, 120) == 30
    budget.check_integrity()
    assert budget.available_bytes == -20


def test_budget_overhead_is_not_lent() -> None:
    budget = Budget(100)
    budget.overhead_bytes = 15
    assert (budget.budget_bytes, budget.total_bytes, budget.available_bytes) == (100, 85, 85)
