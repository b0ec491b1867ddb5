"""docs/tools.md has the tables of the code."""

from __future__ import annotations

import re
from pathlib import Path

from engines.text.reasoning import FORMATS
from engines.text.tool_syntax import SYNTAXES

TEXT = (Path(__file__).parents[1] / "docs" / "tools.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this heading."""
    table = TEXT[TEXT.index(heading) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in table]


def code(*texts: str) -> str:
    return ", ".join(f"`` {text} ``" if "`" in text else f"`{text}`" for text in texts)


def test_syntaxes_are_listed_in_their_order() -> None:
    expected = [[code(each.name), each.models, code(re.sub(r"\s+", " ", each.example))] for each in SYNTAXES]
    assert rows("| name | models | a call |") == expected


def test_formats_of_thinking_are_listed_in_their_order() -> None:
    expected = [[code(each.name), code(*each.opens), code(*each.closes)] for each in FORMATS]
    assert rows("| name | opened by | closed by |") == expected
