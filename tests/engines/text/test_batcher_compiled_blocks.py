"""Rows that join and leave where a layer's graph is kept and attention is a kernel over the batch's cache, as on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from engines.gguf.compiled_block import CompiledBlock, compiled_blocks
from engines.text.row import RowEvent
from engines.text.sampling import SamplingParameters
from tests.engines.gguf.helpers_device import Device
from tests.engines.text.helpers_rows import VOCABULARY, continue_alone, make_batcher, make_row, stock_model, tokens_of


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    mx.disable_compile()  # on the CPU it would call a C++ compiler
    yield
    mx.enable_compile()


def prompt(length: int, seed: int) -> list[int]:
    return [(7 * i + 13 * seed) % (VOCABULARY - 1) for i in range(length)]


@pytest.mark.parametrize("runs_ahead", [True, False])
@pytest.mark.parametrize("name", ["llama", "qwen3", "windowed", "gemma3"])
def test_rows_in_company_get_what_they_get_alone(name: str, runs_ahead: bool) -> None:
    model = deepcopy(stock_model(name))
    device = Device()
    model.model.layers = compiled_blocks(model.layers, device)
    assert all(type(layer) is CompiledBlock for layer in model.layers)
    batcher = make_batcher(model, width=4, runs_ahead=runs_ahead)
    drawn = SamplingParameters(seed=3, temperature=0.9, top_k=20)
    # Lengths on both sides of a step of the caches, so that rows of a batch have padding, lose it, and outgrow their room.
    rows = [
        make_row(i, prompt(length, i), count, replace(drawn, seed=i))
        for i, (length, count) in enumerate([(250, 12), (3, 20), (120, 2), (40, 9), (257, 4), (5, 30)])
    ]
    events, tick = list[RowEvent](), 0
    for row in rows[:3]:
        batcher.submit(row)
    while batcher.busy:
        events += batcher.step()
        tick += 1
        if tick == 12:
            for row in rows[3:]:
                batcher.submit(row)
        if tick == 20:
            batcher.cancel(1)
        assert held_in_common(batcher.running.cohorts.batches)
    for row in rows:
        got, alone = tokens_of(events, row.id), continue_alone(stock_model(name), row)
        assert got == (alone[: len(got)] if row.id == 1 else alone)
    assert "attend" in device.calls


def held_in_common(batches: list[Any]) -> bool:
    """Layers of whole contexts have one array of offsets and one of padding, so that a step computes either once."""
    for batch in batches:
        wholes = [cache for cache in batch.prompt_cache if type(cache).__name__ == "BatchKVCache"]
        if any(
            each.offset is not wholes[0].offset or each.left_padding is not wholes[0].left_padding for each in wholes
        ):
            return False
    return True
