"""Each row of a batch must get the tokens it would get alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.scheduling.growth import GROWTH_WAIT_S
from engines.text.batcher import can_batch
from engines.text.row import Row, RowEvent, RowRefused, RowStarted, RowStopped, RowToken
from engines.text.sampling import SamplingParameters
from tests.engines.helpers_clock import FakeClock
from tests.engines.text.helpers_rows import (
    EOS,
    GREEDY,
    VOCABULARY,
    WINDOW,
    continue_alone,
    make_batcher,
    make_row,
    never,
    run,
    stock_model,
    tokens_of,
)

MODELS = ("llama", "qwen3", "windowed", "gemma3", "mamba")


def prompt(length: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCABULARY - 1, length)]


ADJUSTED: dict[str, Any] = {
    "frequency_penalty": 0.4,
    "presence_penalty": 0.3,
    "repetition_penalty": 1.3,
    "logit_bias": ((5, -9.0),),
}


def seeded(seed: int) -> SamplingParameters:
    return SamplingParameters(seed=seed, temperature=0.9, top_p=0.9, top_k=40)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("runs_ahead", [True, False])
def test_rows_of_different_lengths_equal_the_rows_alone(name: str, rows: int, runs_ahead: bool) -> None:
    model = stock_model(name)
    wanted = [make_row(i, prompt((5, 17, 1, 9, 2)[i], i), 12, seeded(i) if i % 2 else GREEDY) for i in range(rows)]
    batcher = make_batcher(model, width=5, runs_ahead=runs_ahead)
    for row in wanted:
        batcher.submit(row)
    events = run(batcher)
    for row in wanted:
        assert tokens_of(events, row.id) == continue_alone(model, row)


@pytest.mark.parametrize("name", ["windowed", "gemma3"])
def test_rows_far_beyond_the_window_equal_the_rows_alone(name: str) -> None:
    model = stock_model(name)
    wanted = [
        make_row(i, prompt(length, i), 3 * WINDOW) for i, length in enumerate((3 * WINDOW, 2, WINDOW, WINDOW - 1))
    ]
    for chunk in (1, WINDOW - 1, 64):
        batcher = make_batcher(model, chunk=chunk)
        for row in wanted:
            batcher.submit(row)
        events = run(batcher)
        for row in wanted:
            assert tokens_of(events, row.id) == continue_alone(model, row), (chunk, row.id)


def test_rows_longer_than_a_cache_step_equal_the_rows_alone() -> None:
    model = stock_model("gemma3")
    wanted = [make_row(0, prompt(250, 0), 20), make_row(1, prompt(3, 1), 20, seeded(4)), make_row(2, prompt(258, 2), 4)]
    batcher = make_batcher(model, chunk=100)
    for row in wanted:
        batcher.submit(row)
    events = run(batcher)
    for row in wanted:
        assert tokens_of(events, row.id) == continue_alone(model, row)


@dataclass(frozen=True)
class Arrival:
    """One row of a random schedule; times are in ticks."""

    at: int
    length: int
    max_tokens: int
    seed: int
    greedy: bool
    adjusted: bool
    cancelled_after: int | None  # ticks after its arrival

    def row(self, row_id: int) -> Row:
        sampling = GREEDY if self.greedy else seeded(self.seed)
        if self.adjusted:
            sampling = replace(sampling, **ADJUSTED)
        return make_row(row_id, prompt(self.length, self.seed), self.max_tokens, sampling)


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        at=st.integers(0, 25),
        length=st.integers(1, 20),
        max_tokens=st.integers(1, 16),
        seed=st.integers(0, 999),
        greedy=st.booleans(),
        adjusted=st.booleans(),
        cancelled_after=st.one_of(st.none(), st.integers(0, 25)),
    ),
    min_size=2,
    max_size=7,
)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba"])
@settings(max_examples=20, deadline=None)
@given(
    arrivals=ARRIVALS,
    # Rows of at most 36 tokens count as 256 bytes each: so many rows are granted from such a tick on.
    grants=st.dictionaries(st.integers(0, 30), st.integers(1, 5), max_size=3),
    width=st.integers(1, 5),
    chunk=st.integers(1, 20),
    runs_ahead=st.booleans(),
)
def test_any_schedule_of_joins_cancels_and_grants_keeps_every_row(
    name: str, arrivals: list[Arrival], grants: dict[int, int], width: int, chunk: int, runs_ahead: bool
) -> None:
    model = stock_model(name)
    batcher = make_batcher(model, width=width, chunk=chunk, runs_ahead=runs_ahead)
    arrivals.sort(key=lambda arrival: arrival.at)
    rows = [arrival.row(row_id) for row_id, arrival in enumerate(arrivals)]
    events = list[RowEvent]()
    seen_at_cancel = dict[int, int]()  # cancelled row → how many events there were then
    for tick in range(51):
        for row, arrival in zip(rows, arrivals, strict=True):
            if arrival.at == tick:
                batcher.submit(row)
            if arrival.cancelled_after is not None and arrival.at + arrival.cancelled_after == tick:
                ended = any(isinstance(e, RowToken) and e.id == row.id and e.finish for e in events)
                assert batcher.cancel(row.id) == (not ended)
                if not ended:
                    seen_at_cancel[row.id] = len(events)
        if tick in grants:
            batcher.admission = replace(batcher.admission, grant_bytes=grants[tick] * 256)
        events += batcher.step()
    events += run(batcher)
    starts = list(dict.fromkeys(e.id for e in events if isinstance(e, RowStarted)))
    assert starts == sorted(starts)  # first come, first served
    for row in rows:
        got, alone = tokens_of(events, row.id), continue_alone(model, row)
        if row.id in seen_at_cancel:
            assert got == alone[: len(got)]
            assert all(event.id != row.id for event in events[seen_at_cancel[row.id] :])
        else:
            assert got == alone
            last = [e for e in events if isinstance(e, RowToken) and e.id == row.id][-1]
            assert last.finish == ("stop" if alone[-1] == EOS else "length")
    assert batcher.kv_bytes == 0


@pytest.mark.parametrize("leaver", [0, 1, 2])
def test_a_row_that_leaves_in_the_middle_does_not_disturb_the_others(leaver: int) -> None:
    model = stock_model("gemma3")
    rows = [make_row(i, prompt((20, 3, 9)[i], i), 24, never(seeded(i), EOS)) for i in range(3)]
    batcher = make_batcher(model)
    for row in rows:
        batcher.submit(row)
    events = list[RowEvent]()
    while not tokens_of(events, 2):
        events += batcher.step()
    assert batcher.cancel(leaver)
    after = run(batcher)
    assert {event.id for event in after} == {0, 1, 2} - {leaver}
    for row in rows:
        if row.id != leaver:
            assert tokens_of(events + after, row.id) == continue_alone(model, row)


def test_a_cancel_during_a_long_prefill_is_one_chunk_late_at_most() -> None:
    batcher = make_batcher(stock_model("llama"), chunk=4)
    batcher.submit(make_row(1, prompt(200, 1)))
    assert batcher.step() == [RowStarted(1)]
    batcher.step()
    assert batcher.kv_bytes > 0
    assert batcher.cancel(1)
    assert not batcher.busy
    assert batcher.kv_bytes == 0


def test_a_queued_row_is_cancelled_without_being_started() -> None:
    model = stock_model("llama")
    batcher = make_batcher(model, width=1)
    first, second = make_row(1, prompt(4, 1)), make_row(2, prompt(4, 2))
    batcher.submit(first)
    batcher.submit(second)
    batcher.step()
    assert batcher.cancel(2)
    assert not batcher.cancel(2)
    events = run(batcher)
    assert {event.id for event in events} == {1}
    assert tokens_of(events, 1) == continue_alone(model, first)


def test_rows_that_decode_get_a_token_between_any_two_chunks() -> None:
    batcher = make_batcher(stock_model("llama"), chunk=2)
    batcher.submit(make_row(1, prompt(3, 1), 60))
    while not tokens_of(batcher.step(), 1):
        pass
    batcher.submit(make_row(2, prompt(40, 2), 2))
    ticks = []
    while not tokens_of(events := batcher.step(), 2):
        ticks.append("decode" if tokens_of(events, 1) else "start" if events else "prefill")
    assert ticks.count("prefill") == 20
    assert "prefill,prefill" not in ",".join(ticks)


def test_a_joining_row_is_read_at_least_every_other_tick() -> None:
    batcher = make_batcher(stock_model("llama"), chunk=1)
    batcher.submit(make_row(1, prompt(3, 1), 100))
    batcher.submit(make_row(2, prompt(20, 2), 1))
    ticks = 0
    while not tokens_of(batcher.step(), 2):
        ticks += 1
    assert ticks <= 2 * 20 + 8


def test_width_one_serves_in_the_order_of_arrival() -> None:
    batcher = make_batcher(stock_model("llama"), width=1)
    rows = [make_row(i, prompt(3 + i, i), 3) for i in range(4)]
    for row in rows:
        batcher.submit(row)
    ids = [event.id for event in run(batcher)]
    assert ids == sorted(ids)


@pytest.mark.parametrize("runs_ahead", [True, False])
def test_no_forward_pass_follows_the_last_token_of_the_last_row(runs_ahead: bool) -> None:
    model = stock_model("llama")
    calls = list[int]()

    def record(tokens: mx.array, cache: Any) -> Any:
        calls.append(tokens.shape[1])
        return model(tokens, cache=cache)

    record.make_cache = model.make_cache  # type: ignore[attr-defined]
    row = make_row(1, prompt(8, 1), 3)
    batcher = make_batcher(record, runs_ahead=runs_ahead)
    batcher.submit(row)
    assert tokens_of(run(batcher), 1) == continue_alone(model, row)
    assert calls == [3, 3, 1, 1, 1, 1]


def test_a_model_that_computes_in_the_call_has_its_first_token_reported_with_its_last_chunk() -> None:
    model = stock_model("llama")
    batcher = make_batcher(model, chunk=4, runs_ahead=False)
    row = make_row(1, prompt(9, 1), 3)
    batcher.submit(row)
    ticks = [batcher.step() for _ in range(5)]
    tokens = continue_alone(model, row)
    assert [tokens_of(events, 1) for events in ticks] == [[], [], [tokens[0]], [tokens[1]], [tokens[2]]]
    assert not batcher.busy


def test_a_row_of_one_token_never_joins_where_the_model_computes_in_the_call() -> None:
    model = stock_model("llama")
    batcher = make_batcher(model, runs_ahead=False)
    long, short = make_row(1, prompt(3, 1), 9), make_row(2, prompt(3, 2), 1)
    for row in (long, short):
        batcher.submit(row)
    events = run(batcher)
    for row in (long, short):
        assert tokens_of(events, row.id) == continue_alone(model, row)


class Unmergeable:
    """A cache of one row that cannot merge, as llama4's and afm7's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in ("merge", "filter", "extend", "extract"):
            raise AttributeError(name)
        return getattr(self.inner, name)


class UnmergeableModel:
    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, tokens: mx.array, cache: Any) -> Any:
        return self.model(tokens, cache=cache)

    def make_cache(self) -> list[Any]:
        return [Unmergeable(layer) for layer in self.model.make_cache()]


def test_a_cache_that_cannot_merge_decodes_one_row_at_a_time() -> None:
    stock = stock_model("windowed")
    model = UnmergeableModel(stock)
    assert can_batch(stock)
    assert not can_batch(model)
    batcher = make_batcher(model, width=1)
    rows = [make_row(i, prompt(12 + i, i), 10, seeded(i)) for i in range(3)]
    for row in rows:
        batcher.submit(row)
    events = run(batcher)
    for row in rows:
        assert tokens_of(events, row.id) == continue_alone(stock, row)


@pytest.mark.parametrize("runs_ahead", [True, False])
def test_scores_are_reported_only_for_rows_that_ask_and_are_the_model_s_own(runs_ahead: bool) -> None:
    model = stock_model("llama")
    samplings = [
        replace(GREEDY, logprobs=5, **ADJUSTED),
        GREEDY,
        replace(seeded(3), logprobs=0),
        replace(seeded(4), logprobs=VOCABULARY + 3),
    ]
    rows = [make_row(i, prompt(3 + i, i), 4 + 2 * i, sampling) for i, sampling in enumerate(samplings)]
    batcher = make_batcher(model, runs_ahead=runs_ahead)
    for row in rows:
        batcher.submit(row)
    events = run(batcher)
    for row in rows:
        assert tokens_of(events, row.id) == continue_alone(model, row)
        context = list(row.tokens)
        for event in [event for event in events if isinstance(event, RowToken) and event.id == row.id]:
            if row.sampling.logprobs is None:
                assert event.score is None
                continue
            assert event.score is not None
            logits = np.array(model(mx.array([context]))[0, -1], np.float64)
            alone = logits - np.log(np.exp(logits).sum())
            assert event.score.logprob == pytest.approx(alone[event.token], abs=1e-4)
            assert [id for id, _ in event.score.top] == np.argsort(-alone)[: row.sampling.logprobs].tolist()
            assert [value for _, value in event.score.top] == pytest.approx(
                np.sort(alone)[::-1][: row.sampling.logprobs].tolist(), abs=1e-4
            )
            context.append(event.token)


# --- the KV grant; a row of up to 256 tokens counts 256, one byte a token ---


def test_a_row_waits_until_the_grant_has_room_and_none_overtakes_it() -> None:
    batcher = make_batcher(stock_model("llama"), grant=512)
    batcher.submit(make_row(1, prompt(3, 1), 6))
    batcher.submit(make_row(2, prompt(3, 2), 12))
    batcher.submit(make_row(3, prompt(3, 3), 6))
    events = run(batcher)
    starts = [i for i, event in enumerate(events) if event == RowStarted(3)]
    ends = [i for i, event in enumerate(events) if isinstance(event, RowToken) and event.finish]
    assert len(starts) == 1
    assert ends[0] < starts[0] < ends[1]


def test_a_row_larger_than_the_grant_is_passed_over_and_asks_for_what_it_lacks() -> None:
    model = stock_model("llama")
    batcher = make_batcher(model, grant=300)
    large = make_row(1, prompt(250, 1), 50)
    batcher.submit(large)
    batcher.submit(make_row(2, prompt(3, 2), 3))
    events = run(batcher)
    assert {event.id for event in events} == {2} and len(tokens_of(events, 2)) == 3
    assert not batcher.busy and batcher.step() == []
    assert batcher.growth() == (1, 212)  # 300 tokens are allocated as 512
    batcher.admission = replace(batcher.admission, grant_bytes=512)
    assert batcher.growth() is None
    assert tokens_of(run(batcher), 1) == continue_alone(model, large)


def test_a_row_that_waits_for_a_larger_grant_can_be_cancelled() -> None:
    batcher = make_batcher(stock_model("llama"), grant=256)
    batcher.submit(make_row(1, prompt(250, 1), 50))
    assert batcher.growth() is not None and batcher.cancel(1)
    assert batcher.growth() is None and not batcher.busy


def test_a_row_no_grant_could_hold_is_refused_with_both_numbers() -> None:
    batcher = make_batcher(stock_model("llama"), grant=256)
    batcher.submit(make_row(1, prompt(500, 1), 50))
    assert batcher.deny_growth(1, 700) == [RowRefused(1, needed_tokens=550, granted_tokens=512)]
    assert not batcher.busy and batcher.growth() is None and batcher.deny_growth(1, 700) == []


def test_a_denied_row_asks_again_for_as_much_as_there_can_be() -> None:
    batcher = make_batcher(stock_model("llama"), grant=256)
    batcher.submit(replace(make_row(1, prompt(300, 1), 2000), least_tokens=301, expected_tokens=1324))
    assert batcher.growth() == (1, 1536 - 256)
    assert batcher.deny_growth(1, 800) == [] and batcher.growth() == (1, 768 - 256)


def test_an_open_ended_row_is_projected_at_what_the_grant_holds() -> None:
    batcher = make_batcher(stock_model("llama"), grant=512)
    row = replace(make_row(1, prompt(200, 1), 4), least_tokens=201, expected_tokens=1225)
    batcher.submit(row)
    assert batcher.step() == [RowStarted(1)]


@pytest.mark.parametrize("runs_ahead", [True, False])
def test_a_row_gives_way_when_all_would_outgrow_the_grant_and_resumes_exactly(runs_ahead: bool) -> None:
    model = stock_model("llama")
    rows = [
        replace(make_row(i, prompt(240, i), 40, sampling), least_tokens=241, expected_tokens=250)
        for i, sampling in enumerate((seeded(0), replace(GREEDY, **ADJUSTED)))
    ]
    batcher = make_batcher(model, chunk=300, grant=2 * 256, runs_ahead=runs_ahead)
    for row in rows:
        batcher.submit(row)
    events = run(batcher)
    started = [event.id for event in events if isinstance(event, RowStarted)]
    assert started[:2] == [0, 1] and len(started) == 3
    for row in rows:
        assert tokens_of(events, row.id) == continue_alone(model, row)


def outgrowing(row_id: int = 1) -> Row:
    return replace(make_row(row_id, prompt(240, row_id), 40, seeded(row_id)), least_tokens=241, expected_tokens=250)


def test_a_row_that_will_outgrow_the_grant_alone_asks_ahead() -> None:
    model = stock_model("llama")
    batcher = make_batcher(model, chunk=300, grant=256)
    batcher.submit(outgrowing())
    events = list[RowEvent]()
    while not tokens_of(events, 1):
        events += batcher.step()
    assert batcher.growth() == (1, 256)  # to its end, 280 tokens, which are allocated as 512
    batcher.admission = replace(batcher.admission, grant_bytes=512)
    events += run(batcher)
    assert [event for event in events if isinstance(event, RowStarted)] == [RowStarted(1)]
    assert tokens_of(events, 1) == continue_alone(model, outgrowing())


@pytest.mark.parametrize("runs_ahead", [True, False])
def test_a_row_that_outgrew_the_grant_alone_waits_and_goes_on_exactly(runs_ahead: bool) -> None:
    model = stock_model("llama")
    batcher = make_batcher(model, chunk=300, grant=256, runs_ahead=runs_ahead)
    batcher.submit(outgrowing())
    events = run(batcher)
    assert 14 <= len(tokens_of(events, 1)) <= 17 and batcher.kv_bytes == 0
    assert batcher.growth() == (1, 256)
    batcher.admission = replace(batcher.admission, grant_bytes=512)
    assert tokens_of(events + run(batcher), 1) == continue_alone(model, outgrowing())


def test_a_row_that_outgrew_the_grant_alone_ends_there_when_none_larger_comes() -> None:
    clock = FakeClock()
    batcher = make_batcher(stock_model("llama"), chunk=300, grant=256, clock=clock.now)
    batcher.submit(outgrowing())
    events = run(batcher)
    assert not any(isinstance(event, RowStopped) for event in events)
    clock.sleep(GROWTH_WAIT_S)
    assert batcher.busy and run(batcher) == [RowStopped(1)]
    assert batcher.growth() is None


@pytest.mark.parametrize("when", ["running", "waiting"])
def test_a_row_that_outgrew_the_grant_alone_ends_there_when_growth_is_denied(when: str) -> None:
    batcher = make_batcher(stock_model("llama"), chunk=300, grant=256)
    batcher.submit(outgrowing())
    events = list[RowEvent]()
    while not tokens_of(events, 1):
        events += batcher.step()
    if when == "waiting":
        events += run(batcher)
        events += batcher.deny_growth(1, 300)
    else:
        assert batcher.deny_growth(1, 300) == [] and batcher.growth() is None
        events += run(batcher)
    assert events[-1] == RowStopped(1) and not batcher.busy
    assert 14 <= len(tokens_of(events, 1)) <= 17  # the prompt's 240 tokens and these fill 256


def test_rows_that_can_never_resume_end_where_they_were() -> None:
    batcher = make_batcher(stock_model("llama"), chunk=300)
    for i in range(2):
        batcher.submit(replace(make_row(i, prompt(254, i), 40), least_tokens=255, expected_tokens=260))
    events = list[RowEvent]()
    while len(tokens_of(events, 1)) < 4:
        events += batcher.step()
    batcher.admission = replace(batcher.admission, grant_bytes=256)
    assert run(batcher) == []
    assert batcher.deny_growth(0, 256) + batcher.deny_growth(1, 256) == [RowStopped(0), RowStopped(1)]


def test_a_smaller_grant_holds_for_rows_that_run() -> None:
    model = stock_model("llama")
    rows = [make_row(i, prompt(5, i), 20, seeded(i)) for i in range(4)]
    batcher = make_batcher(model, width=3)
    for row in rows:
        batcher.submit(row)
    events = list[RowEvent]()
    while not tokens_of(events, 2):
        events += batcher.step()
    batcher.admission = replace(batcher.admission, grant_bytes=256)
    after = batcher.step()
    assert {event.id for event in after} == {0}
    events += after + run(batcher)
    # Those that gave way go before the one that never ran.
    assert [e.id for e in events if isinstance(e, RowStarted)] == [0, 1, 2, 1, 2, 3]
    for row in rows:
        assert tokens_of(events, row.id) == continue_alone(model, row)
