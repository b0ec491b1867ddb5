"""Siblings: rows of one prompt, read once. Each gets the tokens it would get alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.text.batcher import Batcher
from engines.text.row import Row, RowEvent, RowPrompt, RowRead, RowStarted, RowToken
from engines.text.sampling import SamplingParameters
from tests.engines.helpers_clock import FakeClock
from tests.engines.text.helpers_rows import (
    GREEDY,
    VOCABULARY,
    continue_alone,
    make_batcher,
    make_row,
    run,
    stock_model,
    tokens_of,
)

MODELS = ("llama", "windowed", "gemma3", "mamba")
STEP = 256  # tokens that the shortest row is projected at; one byte a token


def prompt(length: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY - 1, length)]


def seeded(seed: int) -> SamplingParameters:
    return SamplingParameters(seed=seed, temperature=0.9, frequency_penalty=0.2 * (seed % 2))


def siblings(count: int, length: int = 20, max_tokens: int = 10, number: int = 7, first_id: int = 0) -> list[Row]:
    return [
        replace(make_row(first_id + i, prompt(length, number), max_tokens, seeded(i)), siblings=number)
        for i in range(count)
    ]


class Recorder:
    """A model that notes how many tokens of how many rows it was given at once."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, tokens: mx.array, cache: Any) -> Any:
        self.calls.append(tokens.shape)
        return self.model(tokens, cache=cache)

    def make_cache(self) -> list[Any]:
        return list(self.model.make_cache())

    @property
    def prompt_tokens(self) -> int:
        return sum(tokens for _, tokens in self.calls if tokens > 1)


def submit(batcher: Batcher, rows: Sequence[Row]) -> None:
    for row in rows:
        batcher.submit(row)


def starts_of(events: Sequence[RowEvent]) -> dict[int, int]:
    return {event.id: event.cached_tokens for event in events if isinstance(event, RowStarted)}


def check_texts(model: Any, rows: Sequence[Row], events: Sequence[RowEvent]) -> None:
    for row in rows:
        assert tokens_of(events, row.id) == continue_alone(model, row), row.id


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("runs_ahead", [True, False])
def test_siblings_read_their_prompt_once_and_join_together(name: str, runs_ahead: bool) -> None:
    model = Recorder(stock_model(name))
    batcher = make_batcher(model, chunk=8, runs_ahead=runs_ahead)
    rows = siblings(3, length=21)
    submit(batcher, rows)
    events = run(batcher)
    assert model.prompt_tokens == 20
    assert model.calls[3] == (3, 1)  # the first draw of all three
    assert starts_of(events) == {0: 0, 1: 20, 2: 20}
    check_texts(model.model, rows, events)
    assert batcher.kv_bytes == 0


def test_siblings_join_rows_that_decode() -> None:
    model = stock_model("gemma3")
    batcher = make_batcher(model, chunk=5)
    other = make_row(9, prompt(13, 3), 40, seeded(4))
    rows = siblings(3)
    batcher.submit(other)
    events = list[RowEvent]()
    while not tokens_of(events, 9):
        events += batcher.step()
    submit(batcher, rows)
    events += run(batcher)
    check_texts(model, [other, *rows], events)
    assert starts_of(events) == {9: 0, 0: 0, 1: 19, 2: 19}


def test_a_sibling_for_which_there_is_no_place_waits_for_one_and_still_reads_nothing() -> None:
    model = Recorder(stock_model("llama"))
    batcher = make_batcher(model, width=2, chunk=8)
    rows = siblings(4)
    submit(batcher, rows)
    events = list[RowEvent]()
    while len(starts_of(events)) < 2:
        events += batcher.step()
    assert batcher.kv_bytes > 0
    events += run(batcher)
    assert model.prompt_tokens == 19
    assert starts_of(events) == {0: 0, 1: 19, 2: 19, 3: 19}
    check_texts(model.model, rows, events)
    assert batcher.kv_bytes == 0


def test_none_is_overtaken_by_siblings_of_those_before_it() -> None:
    model = Recorder(stock_model("llama"))
    batcher = make_batcher(model, chunk=8)
    first, second, third = siblings(3)
    between = make_row(5, prompt(9, 5), 10, seeded(5))
    submit(batcher, [first, between, second, third])
    events = run(batcher)
    assert list(starts_of(events)) == [0, 5, 1, 2]
    assert model.prompt_tokens == 19 + 8
    check_texts(model.model, [first, between, second, third], events)


def test_a_sibling_that_comes_a_little_later_finds_the_prompt_and_one_much_later_does_not() -> None:
    model, clock = Recorder(stock_model("llama")), FakeClock()
    batcher = make_batcher(model, chunk=30, clock=clock.now)
    rows = siblings(3, max_tokens=30)
    batcher.submit(rows[0])
    events = list[RowEvent]()
    while not tokens_of(events, 0):
        events += batcher.step()
    clock.sleep(0.1)
    batcher.submit(rows[1])
    events += batcher.step()
    assert starts_of(events) == {0: 0, 1: 19}
    clock.sleep(1.0)
    events += batcher.step()
    held = batcher.kv_bytes
    batcher.submit(rows[2])
    events += run(batcher)
    assert starts_of(events) == {0: 0, 1: 19, 2: 0}
    assert held > 0 and batcher.kv_bytes == 0
    check_texts(model.model, rows, events)


@pytest.mark.parametrize(
    "change",
    [
        {"siblings": 8},
        {"siblings": None},
        {"tokens": tuple(prompt(20, 1))},
        {"scores_prompt": True},
    ],
)
def test_only_the_same_prompt_of_the_same_siblings_is_shared(change: dict[str, Any]) -> None:
    model = Recorder(stock_model("llama"))
    batcher = make_batcher(model, chunk=30)
    first, second = siblings(2)
    second = replace(second, **change)
    submit(batcher, [first, second])
    events = run(batcher)
    assert starts_of(events) == {0: 0, 1: 0}
    assert model.prompt_tokens >= 38
    check_texts(model.model, [first, second], events)


def test_a_prompt_is_kept_only_while_the_grant_has_room_for_it() -> None:
    """Two rows run, two wait. With room for three there is the prompt beside them; with room for two there is not."""
    for room, kept in ((3, True), (2, False)):
        model = Recorder(stock_model("llama"))
        batcher = make_batcher(model, chunk=30, grant=room * STEP, width=2)
        rows = siblings(4)
        submit(batcher, rows)
        events = run(batcher)
        assert (model.prompt_tokens == 19) == kept
        check_texts(model.model, rows, events)


def test_the_last_of_the_room_goes_to_the_sibling_itself() -> None:
    """Room for two: one runs, and the kept prompt becomes the other's own cache instead of being read again."""
    model = Recorder(stock_model("llama"))
    batcher = make_batcher(model, chunk=30, grant=2 * STEP)
    first, second = siblings(2, max_tokens=30)
    batcher.submit(first)
    events = list[RowEvent]()
    while not tokens_of(events, 0):
        events += batcher.step()
    batcher.submit(second)
    events += run(batcher)
    assert model.prompt_tokens == 19 and starts_of(events) == {0: 0, 1: 19}
    check_texts(model.model, [first, second], events)


def test_a_kept_prompt_goes_before_any_row_gives_way() -> None:
    model = Recorder(stock_model("llama"))
    batcher = make_batcher(model, chunk=30, width=2)
    rows = siblings(3, max_tokens=20)
    submit(batcher, rows)
    events = list[RowEvent]()
    while not tokens_of(events, 1):
        events += batcher.step()
    held = batcher.kv_bytes
    batcher.admission = replace(batcher.admission, grant_bytes=2 * STEP)
    events += batcher.step()
    assert batcher.kv_bytes < held
    assert {event.id for event in events[-2:]} == {0, 1}
    events += run(batcher)
    assert starts_of(events) == {0: 0, 1: 19, 2: 0}
    check_texts(model.model, rows, events)


def test_a_kept_prompt_gives_way_to_a_row_that_is_next() -> None:
    model = Recorder(stock_model("llama"))
    batcher = make_batcher(model, chunk=30, grant=2 * STEP)
    first, late = siblings(2, max_tokens=30)
    other = make_row(5, prompt(9, 5), 10, seeded(5))
    batcher.submit(first)
    events = list[RowEvent]()
    while not tokens_of(events, 0):
        events += batcher.step()
    submit(batcher, [other, late])
    events += run(batcher)
    assert list(starts_of(events).values()) == [0, 0, 0]
    check_texts(model.model, [first, other, late], events)


def test_a_sibling_past_the_ceiling_of_deferral_begins_with_the_kept_prompt() -> None:
    """Projected, it has no room beside the other; by what rows hold it has."""
    model = Recorder(stock_model("llama"))
    rows = [replace(row, least_tokens=101, expected_tokens=500) for row in siblings(2, length=100, max_tokens=400)]
    batcher = make_batcher(model, chunk=100, grant=800, defer_ceiling_s=0.0)
    submit(batcher, rows)
    events = list[RowEvent]()
    while not tokens_of(events, 1):
        events += batcher.step()
    assert starts_of(events) == {0: 0, 1: 99} and model.prompt_tokens == 99
    assert not batcher.watch.preemptions


def test_the_prompt_goes_when_its_last_sibling_is_cancelled() -> None:
    batcher = make_batcher(stock_model("llama"), chunk=30, width=1)
    rows = siblings(3, max_tokens=50)
    submit(batcher, rows)
    events = list[RowEvent]()
    while not tokens_of(events, 0):
        events += batcher.step()
    both = batcher.kv_bytes
    assert batcher.cancel(1)
    assert batcher.kv_bytes == both
    assert batcher.cancel(0)
    assert 0 < batcher.kv_bytes < both
    assert batcher.cancel(2)
    assert batcher.kv_bytes == 0 and not batcher.busy


def test_siblings_of_one_token_share_nothing_but_their_start() -> None:
    model = Recorder(stock_model("llama"))
    batcher = make_batcher(model)
    rows = siblings(2, length=1)
    submit(batcher, rows)
    events = run(batcher)
    assert model.prompt_tokens == 0 and starts_of(events) == {0: 0, 1: 0}
    check_texts(model.model, rows, events)


def test_siblings_hear_the_scores_of_the_prompt_that_was_read_for_them() -> None:
    model = Recorder(stock_model("llama"))
    batcher = make_batcher(model, chunk=8)
    rows = [
        replace(row, scores_prompt=True, sampling=replace(GREEDY, seed=row.id, logprobs=2), max_tokens=length)
        for row, length in zip(siblings(3), (4, 0, 5), strict=True)
    ]
    submit(batcher, rows)
    events = run(batcher)
    assert model.prompt_tokens == 19
    heard = {row.id: [e for e in events if isinstance(e, RowPrompt) and e.id == row.id] for row in rows}
    assert [replace(event, id=0) for event in heard[1]] == heard[0] == [replace(event, id=0) for event in heard[2]]
    assert sum(len(event.scores) for event in heard[0]) == 20
    assert [event.id for event in events if isinstance(event, RowRead)] == [1]
    for row in rows:
        if row.max_tokens:
            assert tokens_of(events, row.id) == continue_alone(model.model, row)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba"])
@settings(max_examples=10, deadline=None)
@given(
    arrivals=st.lists(
        st.tuples(
            st.integers(0, 20),  # tick
            st.integers(0, 1),  # prompt
            st.integers(1, 12),  # max_tokens
            st.none() | st.integers(0, 20),  # cancelled so many ticks after its arrival
        ),
        min_size=2,
        max_size=7,
    ),
    grants=st.dictionaries(st.integers(0, 30), st.integers(1, 5), max_size=3),
    width=st.integers(1, 5),
    chunk=st.integers(1, 20),
    runs_ahead=st.booleans(),
)
def test_any_schedule_of_siblings_keeps_every_row(
    name: str,
    arrivals: list[tuple[int, int, int, int | None]],
    grants: dict[int, int],
    width: int,
    chunk: int,
    runs_ahead: bool,
) -> None:
    model, clock = stock_model(name), FakeClock()
    batcher = make_batcher(model, width=width, chunk=chunk, runs_ahead=runs_ahead, clock=clock.now)
    arrivals.sort(key=lambda arrival: arrival[0])
    rows = [
        replace(make_row(i, prompt((12, 5)[kind], kind), most, seeded(i)), siblings=kind)
        for i, (_, kind, most, _) in enumerate(arrivals)
    ]
    events, cancelled = list[RowEvent](), set[int]()
    for tick in range(45):
        for row, (at, _, _, after) in zip(rows, arrivals, strict=True):
            if at == tick:
                batcher.submit(row)
            if after is not None and at + after == tick and batcher.cancel(row.id):
                cancelled.add(row.id)
        if tick in grants:
            batcher.admission = replace(batcher.admission, grant_bytes=grants[tick] * STEP)
        events += batcher.step()
        clock.sleep(0.05)
    events += run(batcher)
    starts = list(dict.fromkeys(event.id for event in events if isinstance(event, RowStarted)))
    assert starts == sorted(starts)
    for row in rows:
        got, alone = tokens_of(events, row.id), continue_alone(model, row)
        assert got == (alone[: len(got)] if row.id in cancelled else alone)
        if row.id not in cancelled:
            ends = [event for event in events if isinstance(event, RowToken) and event.id == row.id and event.finish]
            assert len(ends) == 1
    assert batcher.kv_bytes == 0
