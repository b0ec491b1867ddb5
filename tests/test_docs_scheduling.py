"""docs/scheduling.md has the numbers of the code."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import msgspec

from engines.scheduling.pacing import MARGIN
from engines.scheduling.settings import SchedulingSettings
from engines.scheduling.waiting import HANDICAP_S

TEXT = (Path(__file__).parents[1] / "docs" / "scheduling.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this heading."""
    table = TEXT[TEXT.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.split("|")[1:-1]] for row in table]


def test_settings_are_all_there_with_their_defaults() -> None:
    fields = {field.name: str(field.default) for field in msgspec.structs.fields(SchedulingSettings)}
    assert {key: default for key, _, default in rows("| key | unit | default |")} == fields


def test_constants_have_their_values() -> None:
    constants = rows("| constant | unit | value |")
    assert len(constants) >= 15
    for name, _, value in constants:
        module, constant = name.split(".")
        assert str(getattr(import_module(f"engines.scheduling.{module}"), constant)) == value, name


def test_every_policy_and_its_numbers_are_described() -> None:
    folder = Path(__file__).parents[1] / "engines" / "scheduling"
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py", "settings.py", "histogram.py"}
    assert {module for module in modules if f"`{module}`" not in TEXT} == set()
    for priority, seconds in HANDICAP_S.items():
        assert f"`{priority}` {seconds:.0f} s" in TEXT
    kept = 0.8 + min(MARGIN, 0.2 / 5)
    assert f"0.8 → {kept / (1 - kept):.2f}" in TEXT
