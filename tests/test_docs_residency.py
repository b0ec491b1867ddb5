"""``docs/residency.md`` says what the code does: its table is the code's, and what it names exists."""

from __future__ import annotations

import typing
from pathlib import Path

from gateway import settings
from gateway.registry.schema import MemorySection
from gateway.residency.eviction import POLICIES
from gateway.residency.states import Cause, State, render_table

DOCUMENT = (Path(__file__).parents[1] / "docs" / "residency.md").read_text(encoding="utf-8")


def test_table_is_exactly_the_generated_one() -> None:
    begin = DOCUMENT.index("| event |")
    end = DOCUMENT.index("\n\n", begin) + 1
    assert DOCUMENT[begin:end] == render_table()
    assert DOCUMENT.count("| event |") == 1


def test_states_and_causes_are_all_there() -> None:
    section = DOCUMENT[DOCUMENT.index("## States") : DOCUMENT.index("| event |")]
    for state in State:
        assert f"\n| {state.name}" in section
    for cause in Cause:
        assert cause.value in section


def test_policies_are_all_there_and_the_registry_takes_each() -> None:
    for policy in POLICIES:
        assert f"\n- `{policy}`: " in DOCUMENT
    (allowed,) = [field for name, field in typing.get_type_hints(MemorySection).items() if name == "policy"]
    assert set(typing.get_args(allowed)) == set(POLICIES) == set(typing.get_args(settings.Policy))
