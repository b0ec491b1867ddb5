"""The table of architectures in the documentation is what the tests declare."""

from __future__ import annotations

import gguf

from engines.gguf.families import FAMILIES, REFUSED
from tests.engines.gguf.families.table import DOCUMENT, generated, rewritten

ENCODERS_AND_OTHERS = {"clip", "wavtokenizer-dec", "t5encoder", "gemma-embedding", "llama-embed"}


def test_table_of_the_documentation_is_generated() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == rewritten(text), "run python -m tests.engines.gguf.families.table"


def test_every_supported_architecture_is_proven() -> None:
    assert "not tested" not in generated()


def test_every_architecture_of_llama_cpp_is_run_or_refused_with_a_reason() -> None:
    """But for those that are no decoders of text: encoders, projectors, codecs."""
    decoders = {name for name in gguf.MODEL_ARCH_NAMES.values() if "bert" not in name} - ENCODERS_AND_OTHERS
    assert decoders - FAMILIES.keys() - REFUSED.keys() == set()
    assert FAMILIES.keys() & REFUSED.keys() == set()
