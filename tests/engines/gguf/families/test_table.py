"""The table of architectures in the documentation is what the tests declare."""

from __future__ import annotations

from tests.engines.gguf.families.table import DOCUMENT, generated, rewritten


def test_table_of_the_documentation_is_generated() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == rewritten(text), "run python -m tests.engines.gguf.families.table"


def test_every_supported_architecture_is_proven() -> None:
    assert "not tested" not in generated()
