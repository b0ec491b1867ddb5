"""Which kernels these tests run on."""

from __future__ import annotations

import pytest

from engines.gguf.kernels import table


@pytest.fixture(autouse=True)
def exact_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiled kernels, whether built or not: they quantise activations, and these tests compare models with stock
    ones to the last digits of float32. ``kernels/cpu`` has tests of the compiled ones."""
    monkeypatch.setattr(table, "BACKENDS", tuple(each for each in table.BACKENDS if each.name != "cpu"))
