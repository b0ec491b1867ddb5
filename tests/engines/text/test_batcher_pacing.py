"""Prefill beside decode in virtual time: the model's calls take time, and nothing else does."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from engines.scheduling.admission import KvAdmission, KvCost
from engines.scheduling.pacing import Pacer
from engines.scheduling.settings import SchedulingSettings
from engines.text.batcher import Batcher
from engines.text.row import RowEvent, RowToken
from tests.engines.helpers_clock import FakeClock
from tests.engines.text.helpers_rows import EOS, GREEDY, make_row, never, stock_model, tokens_of
from tests.engines.text.test_batcher import prompt

STEP_S, TOKEN_S = 0.05, 0.01  # a decode step, and a token of a prompt


class TimedModel:
    """The tiny llama, on a device that takes its time."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.model = stock_model("llama")
        self.prefill_s = 0.0

    def __call__(self, ids: mx.array, cache: list[Any]) -> Any:
        tokens = ids.shape[1]
        seconds = STEP_S if tokens == 1 else tokens * TOKEN_S
        self.clock.sleep(seconds)
        self.prefill_s += seconds if tokens > 1 else 0.0
        return self.model(ids, cache=cache)

    def make_cache(self) -> Any:
        return self.model.make_cache()


def timed(**settings: Any) -> tuple[Batcher, TimedModel]:
    model = TimedModel(FakeClock())
    batcher = Batcher(
        model,
        width=4,
        eos_ids=frozenset({EOS}),
        admission=KvAdmission(KvCost(1), None),
        pacer=Pacer(SchedulingSettings(**settings)),
        runs_ahead=False,
        clock=model.clock.now,
    )
    return batcher, model


def stream(batcher: Batcher, seconds: float, model: TimedModel) -> None:
    """A row that decodes, and has done so for so long."""
    endless = never(GREEDY, EOS)
    batcher.submit(make_row(1, prompt(3, 1), 9999, endless))
    while model.clock.now() < seconds:
        batcher.step()


@pytest.mark.parametrize(("settings", "kept"), [({}, 0.8), ({"retention": 0.5}, 0.5), ({"prefill_ratio": 9.0}, 0.88)])
def test_a_stream_keeps_its_share_of_speed_while_a_long_prompt_is_read(settings: dict[str, float], kept: float) -> None:
    batcher, model = timed(**settings)
    stream(batcher, 5.0, model)
    began = model.clock.now()
    batcher.submit(make_row(2, prompt(600, 2), 4))
    events = list[RowEvent]()
    while not tokens_of(events, 2):
        events += batcher.step()
    share = len(tokens_of(events, 1)) * STEP_S / (model.clock.now() - began)
    assert kept <= share < kept + 0.06
    assert model.prefill_s == pytest.approx((2 + 599) * TOKEN_S)


def test_a_lone_prompt_is_read_at_full_speed() -> None:
    batcher, model = timed()
    batcher.submit(make_row(1, prompt(1500, 1), 1))
    while batcher.busy:
        batcher.step()
    assert model.clock.now() == pytest.approx(1499 * TOKEN_S + STEP_S)


def test_chunks_aim_at_the_time_that_was_set() -> None:
    batcher, model = timed(prefill_tick_ms=300)
    batcher.submit(make_row(1, prompt(1000, 1), 1))
    longest = 0.0
    while batcher.busy:
        began = model.clock.now()
        batcher.step()
        longest = max(longest, model.clock.now() - began)
    assert 0.25 < longest <= 0.3 + STEP_S + 0.01
    assert 28 <= batcher.pacer.chunk_tokens <= 30


def test_a_prompt_that_pacing_has_held_back_for_long_gets_half_of_the_time() -> None:
    batcher, model = timed(prefill_ratio=50.0, prefill_deadline_s=20.0)
    stream(batcher, 5.0, model)
    began = model.clock.now()
    batcher.submit(make_row(2, prompt(1200, 2), 1))
    while not any(isinstance(event, RowToken) and event.id == 2 for event in batcher.step()):
        pass
    assert model.clock.now() - began < 20 + 2.3 * 12 + 1


def test_what_was_dispatched_ahead_counts_as_decoding() -> None:
    """A lazy model is dispatched in no time and computes when it is waited for: a chunk must not be charged with a step."""
    model = TimedModel(FakeClock())
    batcher = Batcher(
        model,
        width=2,
        eos_ids=frozenset({EOS}),
        admission=KvAdmission(KvCost(1), None),
        pacer=Pacer(),
        clock=model.clock.now,
    )
    seen = list[float]()
    batcher.pacer.observe = lambda tokens, seconds: seen.append(seconds)  # type: ignore[method-assign]
    batcher.submit(make_row(1, prompt(3, 1), 50))
    while not batcher.running.cohorts:
        batcher.step()
    seen.clear()
    (batch,) = batcher.running.cohorts.batches
    batch.settle = lambda: model.clock.sleep(STEP_S)  # type: ignore[method-assign]
    batcher.submit(make_row(2, prompt(9, 2), 50))
    while not seen:
        batcher.step()
    assert seen == [pytest.approx(8 * TOKEN_S)]


def test_pacing_hears_what_each_step_attends_over(monkeypatch: pytest.MonkeyPatch) -> None:
    batcher, _ = timed()
    batcher.admission = KvAdmission(KvCost(1, window_bytes_per_token=1, window_tokens=16), None)
    heard = list[tuple[int, int]]()
    decoded = batcher.pacer.decoded

    def noted(rows: Any, *arguments: Any, tokens: int) -> None:
        heard.append((len(rows), tokens))
        decoded(rows, *arguments, tokens=tokens)

    monkeypatch.setattr(batcher.pacer, "decoded", noted)
    for row_id in (1, 2):
        batcher.submit(make_row(row_id, prompt(11, row_id), 12, never(GREEDY, EOS)))
    while batcher.busy:
        batcher.step()
    alone = [tokens for rows, tokens in heard if rows == 1]
    together = [tokens for rows, tokens in heard if rows == 2]
    assert alone[0] == 12 and alone[-1] == (23 + 16) // 2
    assert together[-1] > 2 * 16 and {*together} <= {2 * n if n <= 16 else n + 16 for n in range(12, 24)}


@pytest.mark.parametrize(("width", "overdue"), [(2, False), (8, True)])
def test_who_waits_for_a_place_is_not_held_back_by_pacing(width: int, overdue: bool) -> None:
    batcher, model = timed(prefill_ratio=20.0, prefill_deadline_s=10.0)
    batcher.reception.width = width
    stream(batcher, 5.0, model)
    for row_id in range(2, 7):
        batcher.submit(make_row(row_id, prompt(30, row_id), 1))
    seen = False
    while batcher.reception.waiting or batcher.running.prefill is not None:
        batcher.step()
        seen |= batcher.pacer.overdue
    assert seen == overdue
