"""What the caches of a batch take, against what admission projects and what the device holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import ArraysCache, BatchKVCache, BatchRotatingKVCache, CacheList

from engines.scheduling.admission import KvAdmission, KvCost
from engines.text import cache_room
from engines.text.batcher import Batcher
from engines.text.cache_room import extended, fit, keep_rows
from tests.engines.text.helpers_rows import (
    EOS,
    GREEDY,
    VOCABULARY,
    WINDOW,
    FixedPacer,
    continue_alone,
    make_row,
    run,
    stock_model,
    tokens_of,
)

LAYER = 2 * 16 * 2 * 4  # bytes a token: heads x width x (keys and values) x float32
COSTS = {
    "llama": KvCost(2 * LAYER),
    "windowed": KvCost(LAYER, LAYER, WINDOW),
    "gemma3": KvCost(LAYER, LAYER, WINDOW),
    "mamba": KvCost(
        0, state_bytes=2 * (3 * 64 + 64 * 8) * 4
    ),  # of two layers: columns of the convolution, and the state
}


def prompt(length: int, seed: int) -> list[int]:
    return [(7 * i + 13 * seed) % (VOCABULARY - 1) for i in range(length)]


def batcher_of(name: str, *, rows: int = 8, chunk: int = 64, runs_ahead: bool = True) -> Batcher:
    """Its grant holds so many rows of 512 tokens."""
    cost = COSTS[name]
    return Batcher(
        stock_model(name),
        width=8,
        eos_ids=frozenset({EOS}),
        admission=KvAdmission(cost, rows * cost.row_bytes(512)),
        pacer=FixedPacer(chunk),
        runs_ahead=runs_ahead,
    )


@pytest.mark.parametrize("name", list(COSTS))
@settings(max_examples=12, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from([1, 3, 100, 250, 255, 256, 257, 300, 400]), st.integers(1, 12)),
        min_size=1,
        max_size=5,
    ),
    cancelled=st.dictionaries(st.integers(0, 4), st.integers(0, 20), max_size=2),
    granted=st.integers(1, 4),
    chunk=st.sampled_from([3, 64, 100, 300]),
    runs_ahead=st.booleans(),
)
def test_room_is_never_more_than_was_projected(
    name: str,
    rows: list[tuple[int, int]],
    cancelled: dict[int, int],
    granted: int,
    chunk: int,
    runs_ahead: bool,
) -> None:
    batcher = batcher_of(name, rows=granted, chunk=chunk, runs_ahead=runs_ahead)
    made = [make_row(i, prompt(length, i), count) for i, (length, count) in enumerate(rows)]
    for row in made:
        batcher.submit(row)
    grant, tick, events = batcher.admission.grant_bytes, 0, []
    assert grant is not None
    while batcher.busy:
        for row_id, at in cancelled.items():
            if at == tick:
                batcher.cancel(row_id)
        events += batcher.step()
        assert batcher.kv_bytes <= grant
        tick += 1
        assert tick < 2000
    for row in made:
        got = tokens_of(events, row.id)
        alone = continue_alone(stock_model(name), row)
        assert got == (alone[: len(got)] if row.id in cancelled else alone)


@pytest.mark.parametrize("name", list(COSTS))
def test_room_is_what_the_device_holds(name: str) -> None:
    """Nothing of rows that left, or of arrays that grew, stays in memory behind a slice."""
    batcher = batcher_of(name)
    mx.clear_cache()
    before = mx.get_active_memory()
    endless = replace(GREEDY, logit_bias=((EOS, -99.0),))
    for i, length in enumerate((400, 300, 200, 20)):
        batcher.submit(make_row(i, prompt(length, i), 100, endless))
    for rows, leaver in ((4, 1), (3, 0), (2, 3), (1, None)):
        events: list[Any] = []
        while len({event.id for event in events if type(event).__name__ == "RowToken"}) < rows:
            events += batcher.step()
        mx.synchronize()
        slack = 64 * 1024  # logits, tokens, masks
        assert 0 <= mx.get_active_memory() - before - batcher.kv_bytes < slack
        if leaver is not None:
            batcher.cancel(leaver)
    run(batcher)
    assert batcher.kv_bytes == 0


def filled(cache: Any, tokens: int, rows: int = 2) -> Any:
    keys = mx.arange(rows * tokens, dtype=mx.float32).reshape(rows, 1, tokens, 1)
    cache.update_and_fetch(keys, keys)
    return cache


def test_fit_gives_a_cache_whole_steps() -> None:
    cache = filled(BatchKVCache([0, 0]), 10)
    cache.keys, cache.values = cache.keys[..., :11, :], cache.values[..., :11, :]
    fit([CacheList(cache)])  # type: ignore[no-untyped-call]
    assert cache.keys.shape[2] == cache.values.shape[2] == 256
    assert cache.keys[1, 0, :10, 0].tolist() == list(range(10, 20))


def test_fit_cuts_a_prefilled_window() -> None:
    cache = filled(filled(BatchRotatingKVCache(8, [0, 0]), 6), 12)
    assert cache.keys.shape[2] == 18  # the window and the chunk
    fit([cache])
    assert cache.keys.shape[2] == 8 and cache.keys[0, 0, :, 0].tolist() == list(range(4, 12))


def test_fit_keeps_nothing_of_what_a_state_was_cut_from() -> None:
    cache: Any = ArraysCache(2)
    mx.clear_cache()
    before = mx.get_active_memory()
    cache[0] = mx.arange(1 << 16)[None, :, None][:, -3:]
    fit([CacheList(cache)])  # type: ignore[no-untyped-call]
    assert cache[0].reshape(-1).tolist() == [65533, 65534, 65535] and cache[1] is None
    assert mx.get_active_memory() - before < 4096


def test_keep_rows_frees_the_room_of_the_longest_that_left() -> None:
    cache = filled(BatchKVCache([0, 290]), 300)
    keep_rows([cache], [1])
    assert cache.keys.shape == (1, 1, 256, 1) and cache._idx == 10
    assert cache.keys[0, 0, :10, 0].tolist() == list(range(590, 600))


ROW = 16 * 2 * 4  # bytes of a token of one row and layer, keys and values


def filled_layers(padding: list[int], tokens: int, layers: int = 6) -> list[Any]:
    caches = [BatchKVCache(padding) for _ in range(layers)]
    for cache in caches:
        states = mx.zeros((len(padding), 1, tokens, 16))
        cache.update_and_fetch(states, states)  # type: ignore[no-untyped-call]
        mx.eval(cache.state)
    mx.clear_cache()
    mx.reset_peak_memory()
    return caches


@pytest.mark.parametrize("at_once", [1, 3])
def test_rows_that_leave_or_join_with_padding_take_no_more_than_is_projected_while_they_do(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_room, "layers_at_once", lambda: at_once)
    cost = KvCost(6 * ROW, layer_bytes_per_token=at_once * ROW)
    slack = 4096  # offsets, padding
    before = mx.get_active_memory()

    caches = filled_layers([0, 300, 310, 320], 4000)
    keep_rows(caches, [1, 2, 3])
    assert mx.get_peak_memory() - before <= cost.batch_bytes([4000] * 4) + cost.copy_bytes([4000] * 4) + slack

    del caches
    caches, others = filled_layers([0, 0], 4000), filled_layers([0, 0], 100)
    for cache, other in zip(caches, others, strict=True):
        cache.extend(other)
    del cache, other, others
    extended(caches)
    assert mx.get_peak_memory() - before <= cost.batch_bytes([4000] * 4) + cost.copy_bytes([4000] * 4) + slack


@pytest.mark.parametrize("rows", [[0], [2], [0, 1, 2], [1, 2], [0, 2, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("left", [[0, 3, 1, 2], [40, 41, 300, 40], [0, 0, 0, 0]])
def test_keep_rows_keeps_what_stock_filter_keeps_in_memory_of_its_own(rows: list[int], left: list[int]) -> None:
    stock, ours = (filled(BatchKVCache(left), 310, rows=4) for _ in range(2))
    stock.filter(mx.array(rows))
    base = ours.keys
    keep_rows([ours], rows)
    assert ours._idx == stock._idx and ours.keys.shape[2] == -(-ours._idx // 256) * 256
    assert ours.offset.tolist() == stock.offset.tolist() and ours.left_padding.tolist() == stock.left_padding.tolist()
    for got, wanted in zip(ours.keys_and_values(), stock.keys_and_values(), strict=True):
        assert mx.array_equal(got, wanted)
    del base
    mx.clear_cache()
    before = mx.get_active_memory()
    nbytes = ours.keys.nbytes
    ours.keys = None
    mx.synchronize()
    mx.clear_cache()
    assert before - mx.get_active_memory() == pytest.approx(nbytes, abs=4096)  # it was a slice of nothing larger
