"""The table of architectures in ``docs/gguf.md``, made from what the tests declare.

``python -m tests.engines.gguf.families.table`` rewrites it.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import Final

from engines.gguf.families import FAMILIES, REFUSED
from tests.engines.gguf import families as package
from tests.engines.gguf.families.helpers_family import Case
from tests.engines.gguf.families.recorded import recordings

__all__ = ["DOCUMENT", "cases", "generated", "rewritten"]

DOCUMENT: Final = Path(__file__).parents[4] / "docs" / "gguf.md"
_BEGIN: Final = "<!-- architectures: made by python -m tests.engines.gguf.families.table -->"
_END: Final = "<!-- end of architectures -->"

# Whose quant types and batches are held in tests older than the harness: test_families.py, test_model_batches.py.
_OLDER: Final = frozenset({"llama", "qwen2", "qwen3", "gemma3", "phi3"})


def cases() -> list[Case]:
    """What all test files of the package declare."""
    found: list[Case] = []
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("test_"):
            declared = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "CASES", [])
            found += [case for case in declared if isinstance(case, Case)]
    return found


def generated() -> str:
    """The table, in Markdown."""
    by_architecture: dict[str, list[Case]] = {}
    for case in cases():
        by_architecture.setdefault(case.architecture, []).append(case)
    lines = [
        "| architecture | mlx-lm class | F32 | quant types | rows of a batch | llama.cpp | proof |",
        "|---|---|---|---|---|---|---|",
    ]
    for architecture in sorted({*FAMILIES, *REFUSED}):
        if architecture in REFUSED:
            lines.append(f"| `{architecture}` | | refused | | | | {REFUSED[architecture]} |")
            continue
        proven = by_architecture.get(architecture, [])
        classes = sorted({f"`{case.config['model_type']}`" for case in proven})
        if not proven:
            lines.append(f"| `{architecture}` | | not tested | | | | |")
        else:
            whole = [case for case in proven if not case.light]
            types = _types(architecture, whole)
            rows = "2, 3, KV heads" if all(case.rows for case in whole) else "1"
            proofs = "; ".join(dict.fromkeys(case.proof for case in proven))
            names = ", ".join(case.id for case in proven)
            same = "same logits" if any(case.id in recordings() for case in proven) else ""
            start = f"| `{architecture}` | {', '.join(classes)} | equal | {types} | {rows} | {same}"
            lines.append(f"{start} | {proofs} ({names}) |")
    return "\n".join(lines)


def _types(architecture: str, cases: list[Case]) -> str:
    if architecture == "llama":
        return "all"
    return "blocks of 32 and 256" if cases or architecture in _OLDER else ""


def rewritten(text: str) -> str:
    """The document with the table as it should be."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{generated()}\n\n{_END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
