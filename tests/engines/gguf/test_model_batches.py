"""Rows that decode together get the tokens and the KV they would get alone, for every family.

Rows prefill in batches of one and join by ``extend`` at different ticks, through mlx-lm's own batches: the way they are served.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import GenerationBatch, PromptProcessingBatch
from mlx_lm.models.cache import make_prompt_cache

from engines.gguf.model import build_model
from engines.header import read_header
from tests.engines.gguf.helpers_tiny import FAMILIES, tiny_model

TICKS = 10
LENGTHS = (5, 23, 11)  # below and above the window of the tiny gemma3
JOINS_AT = (0, 2, 3)  # tick


def prompt(row: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(row).integers(3, 352, LENGTHS[row])]


def alone(model: Any, row: int, count: int) -> tuple[list[int], list[Any]]:
    """Greedy tokens of one row with plain one-row caches; the caches as they are when the last token has been read."""
    cache = make_prompt_cache(model)
    logits = model(mx.array([prompt(row)]), cache=cache)
    tokens = []
    for _ in range(count):
        tokens.append(int(np.argmax(np.array(logits[0, -1]))))
        logits = model(mx.array([[tokens[-1]]]), cache=cache)
    return tokens, cache


def prefilled(model: Any, row: int) -> Any:
    return PromptProcessingBatch(model, [row], [make_prompt_cache(model)], prefill_step_size=7).generate([prompt(row)])


def in_order(cache: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Keys and values, oldest first."""
    if hasattr(cache, "max_size"):
        keys, values = cache._temporal_order(cache.keys), cache._temporal_order(cache.values)
    else:
        keys, values = cache.keys_and_values()
    return np.array(keys), np.array(values)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quant", ["F32", "Q4_K"])
@pytest.mark.parametrize("rows", [2, 3])
def test_rows_of_a_batch_equal_rows_alone(family: str, quant: str, rows: int, tmp_path: Path) -> None:
    model = build_model(read_header(tiny_model(family, quant=quant).write(tmp_path / "rows.gguf"))).model
    check_batch(model, rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_as_many_as_kv_heads_equal_rows_alone(family: str, tmp_path: Path) -> None:
    """A mask that is broadcast over heads instead of rows goes unnoticed only at this width."""
    tiny = tiny_model(family, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    model = build_model(read_header(tiny.write(tmp_path / "heads.gguf"))).model
    check_batch(model, rows=2)


@pytest.mark.parametrize("family", ["llama", "phi3"])
def test_rows_with_windows_in_all_layers_equal_rows_alone(family: str, tmp_path: Path) -> None:
    tiny = tiny_model(family)
    path = tiny.write(tmp_path / "window.gguf", metadata={f"{family}.attention.sliding_window": 8})
    check_batch(build_model(read_header(path)).model, rows=3)


def check_batch(model: Any, rows: int) -> None:
    batch = GenerationBatch.empty(model, lambda logits: mx.argmax(logits, axis=-1))
    tokens: dict[int, list[int]] = {row: [] for row in range(rows)}
    for tick in range(TICKS):
        for row in range(rows):
            if JOINS_AT[row] == tick:
                batch.extend(prefilled(model, row))
        for response in batch.next():
            tokens[response.uid].append(response.token)
    assert len({token for answer in tokens.values() for token in answer}) > 3  # constant answers would prove little
    for index, row in enumerate(batch.uids):
        assert len(tokens[row]) == TICKS - JOINS_AT[row]
        expected, caches = alone(model, row, len(tokens[row]))
        assert tokens[row] == expected
        for own, merged in zip(caches, batch.extract_cache(index), strict=True):
            assert own.offset == merged.offset
            for mine, theirs in zip(in_order(own), in_order(merged), strict=True):
                held = min(mine.shape[2], theirs.shape[2])  # windows are trimmed at different times
                assert held == min(own.size(), merged.size())
                np.testing.assert_allclose(mine[..., -held:, :], theirs[..., -held:, :], atol=1e-4)
