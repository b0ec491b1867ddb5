"""The simulated engine, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.errors import CheckpointError, ContextLengthExceeded, InvalidField
from engines.scheduling.growth import GROWTH_WAIT_S
from engines.simulated import DEFAULT_MAX_TOKENS, UNLIMITED_CONTEXT, SimulatedEngine, build
from engines.wire import (
    Admitted,
    CapacityRow,
    ChatMessage,
    ChatPrompt,
    Event,
    Failed,
    Finished,
    GrowRequest,
    LoadModel,
    ModelSpec,
    PriorityCounts,
    SchedulingReport,
    SimulateSpec,
    TextDelta,
    TextPrompt,
    TextRequest,
    TokenLogprob,
    TokenPrompt,
    TopLogprob,
    Usage,
)
from tests.engines.helpers_clock import FakeClock


def engine(
    clock: FakeClock | None = None,
    context: int | None = None,
    width: int | None = None,
    grant: int | None = None,
    **spec: Any,
) -> Any:
    simulate = SimulateSpec(**{"weights_bytes": 1000, **spec})
    return SimulatedEngine(simulate, context=context, width=width, grant_bytes=grant, clock=clock or FakeClock())


def submit(model: Any, request_id: int, count: int | None = 3, text: str = "a b", stop: tuple[str, ...] = ()) -> None:
    model.submit(request_id, model.prepare(TextRequest(prompt=TextPrompt(text=text), max_tokens=count, stop=stop)))


def run(model: Any) -> list[Event]:
    events: list[Event] = []
    while model.busy:
        events.extend(model.step())
    return events


def text(events: list[Event], request_id: int = 1) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta) and e.request_id == request_id)


def last(events: list[Event], request_id: int = 1) -> Finished:
    event = [event for event in events if event.request_id == request_id][-1]
    assert isinstance(event, Finished)
    return event


def test_simulated_emits_words_one_a_token() -> None:
    model = engine()
    submit(model, 1)
    events = run(model)
    assert events == [
        Admitted(request_id=1, prompt_tokens=2),
        TextDelta(request_id=1, text="w0", tokens=(0,)),
        TextDelta(request_id=1, text=" w1", tokens=(1,)),
        TextDelta(request_id=1, text=" w2", tokens=(2,)),
        Finished(request_id=1, reason="length", usage=Usage(prompt_tokens=2, completion_tokens=3)),
    ]


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        (ChatPrompt(messages=(ChatMessage(role="user", content="one two"), ChatMessage(role="user", content=None))), 2),
        (TextPrompt(text=" a  b c "), 3),
        (TokenPrompt(tokens=(5, 6)), 2),
    ],
)
def test_simulated_counts_words_as_prompt_tokens(prompt: Any, tokens: int) -> None:
    model = engine()
    model.submit(1, model.prepare(TextRequest(prompt=prompt, max_tokens=1)))
    assert last(run(model)).usage.prompt_tokens == tokens


def test_simulated_times_follow_ttft_and_speed() -> None:
    clock = FakeClock()
    model = engine(clock, ttft_s=2.0, tokens_per_s=4.0)
    submit(model, 1, 3)
    arrivals = []
    while model.busy:
        now = clock.now()
        arrivals += [now for event in model.step() if isinstance(event, TextDelta)]
    assert arrivals == pytest.approx([2.0, 2.25, 2.5], abs=0.011)
    assert max(clock.slept) <= 0.01  # a cancel never waits longer for the step to end


def test_simulated_load_lasts_and_reports_progress() -> None:
    clock = FakeClock()
    fractions: list[float] = []
    spec = ModelSpec(id="m", task="text", format="sim", paths=(), simulate=SimulateSpec(weights_bytes=7, load_s=3.0))
    model = build(LoadModel(spec=spec), fractions.append, clock)
    assert clock.now() == pytest.approx(3.0) and fractions[-1] == 1.0 and fractions == sorted(fractions)
    assert model.info.context == UNLIMITED_CONTEXT and model.memory().static == 7


def test_simulated_load_fails_after_its_time_with_the_given_message() -> None:
    clock = FakeClock()
    simulate = SimulateSpec(weights_bytes=1, load_s=1.0, fail_load="no such luck")
    spec = ModelSpec(id="m", task="text", format="sim", paths=(), simulate=simulate)
    with pytest.raises(CheckpointError, match="m: no such luck"):
        build(LoadModel(spec=spec), lambda fraction: None, clock)
    assert clock.now() == pytest.approx(1.0)


def test_simulated_cancel_ends_running_and_queued_rows_in_the_next_step() -> None:
    model = engine(width=1)
    submit(model, 1, 100)
    submit(model, 2, 100)
    model.step()
    model.cancel(1)
    model.cancel(2)
    model.cancel(99)
    events = list(model.step())
    assert [(e.request_id, e.reason) for e in events if isinstance(e, Finished)] == [(1, "cancelled"), (2, "cancelled")]
    assert last(events, 1).usage.completion_tokens == 1 and not model.busy


def test_simulated_width_bounds_the_rows() -> None:
    model = engine(width=2)
    for request_id in (1, 2, 3):
        submit(model, request_id, 2)
    first = model.step()
    assert [e.request_id for e in first if isinstance(e, Admitted)] == [1, 2]
    assert text(run(model), 3) == "w0 w1"


def test_simulated_stop_over_several_words_leaks_nothing() -> None:
    model = engine()
    submit(model, 1, 100, stop=("w3 w4", "zebra"))
    events = run(model)
    assert text(events) == "w0 w1 w2 "
    assert last(events).reason == "stop" and last(events).stop_sequence == "w3 w4"


def test_simulated_text_held_for_a_stop_is_sent_at_the_end() -> None:
    model = engine()
    submit(model, 1, 2, stop=("w1 w2",))
    events = run(model)
    assert text(events) == "w0 w1" and last(events).reason == "length"
    assert [t for e in events if isinstance(e, TextDelta) for t in e.tokens] == [0, 1]


def test_simulated_answer_ends_with_the_context() -> None:
    model = engine(context=5)
    submit(model, 1, None, text="a b")
    submit(model, 2, 100, text="a b")
    events = run(model)
    assert last(events, 1).usage.completion_tokens == last(events, 2).usage.completion_tokens == 3


def test_simulated_prompt_that_fills_the_context_is_refused_with_both_numbers() -> None:
    with pytest.raises(ContextLengthExceeded, match=r"6 tokens.*holds 6") as refusal:
        submit(engine(context=6), 1, 1, text="a b c d e f")
    assert (refusal.value.tokens, refusal.value.most_tokens, refusal.value.param) == (6, 5, "prompt")


def test_simulated_answer_without_any_bound_ends_at_the_default() -> None:
    model = engine()
    submit(model, 1, None)
    assert last(run(model)).usage.completion_tokens == DEFAULT_MAX_TOKENS


def test_simulated_memory_is_weights_and_kv_in_use() -> None:
    model = engine(kv_bytes_per_token=10)
    submit(model, 1, 5, text="a b c")
    model.step()
    report = model.memory()
    assert (report.static, report.kv) == (1000, 40)  # three of the prompt, one emitted
    run(model)
    assert model.memory().kv == 0 and model.memory().peak >= 1040


# --- the KV grant; ten bytes a token ---


def test_simulated_rows_start_where_their_tokens_fit_the_grant() -> None:
    model = engine(grant=100, kv_bytes_per_token=10)
    for request_id in (1, 2, 3):
        submit(model, request_id, 3)  # two of the prompt: five tokens
    first = model.step()
    assert [e.request_id for e in first if isinstance(e, Admitted)] == [1, 2]
    assert model.memory().kv <= 100
    assert text(run(model), 3) == "w0 w1 w2"


def test_simulated_row_beyond_the_grant_waits_for_growth_and_lets_others_pass() -> None:
    model = engine(grant=100, kv_bytes_per_token=10)
    submit(model, 1, 20)
    submit(model, 2, 3)
    assert text(run(model), 2) == "w0 w1 w2"
    assert not model.busy and model.growth() == GrowRequest(request_id=1, bytes=120)
    model.set_grant(220)
    assert model.growth() is None
    assert last(run(model)).usage.completion_tokens == 20


def test_simulated_row_that_waits_for_growth_can_be_cancelled() -> None:
    model = engine(grant=100, kv_bytes_per_token=10)
    submit(model, 1, 20)
    model.cancel(1)
    assert last(run(model)).reason == "cancelled" and model.growth() is None


def test_simulated_row_beyond_any_grant_fails_with_both_numbers() -> None:
    model = engine(grant=100, kv_bytes_per_token=10)
    submit(model, 1, 20)
    model.deny_growth(1, 200)
    (failed,) = run(model)
    assert isinstance(failed, Failed) and failed.error.code == "context_length_exceeded"
    assert "22 tokens" in failed.error.message and "holds 20" in failed.error.message


def test_simulated_open_answer_asks_ahead_and_goes_on() -> None:
    model = engine(grant=3000, kv_bytes_per_token=10)
    submit(model, 1, None)
    events = list(model.step())
    while model.growth() is None:
        events += model.step()
    assert model.memory().kv < 3000
    model.set_grant(10**9)
    assert last(events + run(model)).usage.completion_tokens == DEFAULT_MAX_TOKENS


def test_simulated_open_answer_that_outgrew_the_grant_waits_and_is_whole() -> None:
    model = engine(grant=3000, kv_bytes_per_token=10)
    submit(model, 1, None)
    events = run(model)
    assert model.memory().kv == 0 and model.growth().bytes >= 10
    model.set_grant(10**9)
    events += run(model)
    assert text(events) == " ".join(f"w{i}" for i in range(DEFAULT_MAX_TOKENS))
    assert len([event for event in events if isinstance(event, Admitted)]) == 1


@pytest.mark.parametrize("how", ["denied", "in time"])
def test_simulated_open_answer_ends_where_the_grant_does_without_a_larger_one(how: str) -> None:
    clock = FakeClock()
    model = engine(clock, grant=3000, kv_bytes_per_token=10)
    submit(model, 1, None)
    events = run(model)
    if how == "denied":
        model.deny_growth(1, 3000)
    else:
        clock.sleep(GROWTH_WAIT_S)
    end = last(events + run(model))
    assert end.reason == "length" and end.usage.completion_tokens == 298 and model.growth() is None


def test_simulated_youngest_rows_give_way_to_a_smaller_grant_and_end_whole() -> None:
    model = engine(grant=1000, kv_bytes_per_token=10)
    for request_id in (1, 2, 3):
        submit(model, request_id, 10)
    events = list(model.step()) + list(model.step())
    model.set_grant(250)
    events += model.step()
    assert model.memory().kv <= 250
    events += run(model)
    for request_id in (1, 2, 3):
        assert text(events, request_id) == " ".join(f"w{i}" for i in range(10))
    assert len([event for event in events if isinstance(event, Admitted)]) == 3


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 30), st.one_of(st.none(), st.integers(1, 40))), min_size=1, max_size=8),
    grants=st.lists(st.integers(0, 800), max_size=6),
    most=st.integers(0, 800),
    width=st.integers(1, 5),
)
def test_simulated_kv_never_exceeds_the_grant_and_every_request_ends(
    rows: list[tuple[int, int | None]], grants: list[int], most: int, width: int
) -> None:
    """Whatever grants come; growth within ``most`` is met, beyond it denied."""
    model = engine(grant=500, kv_bytes_per_token=10, width=width, context=64)
    for request_id, (prompt, count) in enumerate(rows):
        submit(model, request_id, count, "x " * prompt)
    events: list[Event] = []
    granted = 500
    for granted in grants:
        model.set_grant(granted)
        events += model.step()
        assert model.memory().kv <= granted
    for _ in range(5000):
        if model.busy:
            events += model.step()
            assert model.memory().kv <= granted
        elif (growth := model.growth()) is not None and granted + growth.bytes <= most:
            granted += growth.bytes
            model.set_grant(granted)
        elif growth is not None:
            model.deny_growth(growth.request_id, max(granted, most))
        else:
            break
    ends = [event.request_id for event in events if isinstance(event, Finished | Failed)]
    assert sorted(ends) == list(range(len(rows)))


def test_simulated_faults_come_after_their_tokens() -> None:
    calls: list[str] = []
    aborting = SimulateSpec(weights_bytes=1, abort_after_tokens=3)
    hanging = SimulateSpec(weights_bytes=1, hang_after_tokens=3)
    for fault, simulate in (("abort", aborting), ("hang", hanging)):
        model = SimulatedEngine(
            simulate,
            context=None,
            width=None,
            clock=FakeClock(),
            abort=lambda: calls.append("abort"),
            hang=lambda: calls.append("hang"),
        )
        submit(model, 1, 2)  # counted over requests
        run(model)
        submit(model, 2, 2)
        model.step()
        assert calls == []
        model.step()
        assert calls.pop() == fault


# --- options of the answer's text ---


def ask(model: Any, request_id: int = 1, **fields: Any) -> None:
    whole: dict[str, Any] = {"prompt": TextPrompt(text="a B c"), "max_tokens": 2}
    model.submit(request_id, model.prepare(TextRequest(**whole | fields)))


def entries(events: list[Event]) -> list[TokenLogprob]:
    return [entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs]


def test_simulated_makes_up_log_probabilities_where_they_are_asked_for() -> None:
    model = engine()
    ask(model, logprobs=3, stop=("w0 w9",))
    events = run(model)
    assert [(entry.token, entry.raw, len(entry.top)) for entry in entries(events)] == [(0, b"w0", 3), (1, b" w1", 3)]
    for entry in entries(events):
        assert entry.top[0] == TopLogprob(entry.token, entry.raw, entry.logprob or 0.0)
        assert [top.logprob for top in entry.top] == sorted((top.logprob for top in entry.top), reverse=True)
    ask(model, 2, logprobs=0)
    assert [entry.top for entry in entries(run(model))] == [(), ()]


@pytest.mark.parametrize(
    ("prompt", "echoed"),
    [
        (TextPrompt(text="a B  c"), "a B  c"),
        (TokenPrompt(tokens=(7, 2)), "w7 w2"),
        (ChatPrompt(messages=(ChatMessage(role="user", content="hi there"),)), "hi there"),
    ],
)
def test_simulated_echoes_the_prompt_first(prompt: Any, echoed: str) -> None:
    model = engine()
    ask(model, prompt=prompt, echo=True, logprobs=1)
    events = run(model)
    assert text(events) == echoed + "w0 w1"
    reported = entries(events)
    assert reported[0].logprob is None and all(entry.logprob is not None for entry in reported[1:])
    assert len(reported) == last(events).usage.prompt_tokens + 2
    assert [token for event in events if isinstance(event, TextDelta) for token in event.tokens] == [0, 1]


def test_simulated_answers_the_prompt_alone_for_no_tokens_beside_echo() -> None:
    model = engine(context=3)
    ask(model, echo=True, max_tokens=0)
    events = run(model)
    assert text(events) == "a B c"
    assert last(events) == Finished(request_id=1, reason="length", usage=Usage(prompt_tokens=3))
    with pytest.raises(InvalidField, match="max_tokens is 0"):
        ask(model, max_tokens=0)


def test_simulated_siblings_after_the_first_count_the_prompt_as_cached() -> None:
    model = engine()
    for request_id, siblings in ((1, 5), (2, 5), (3, None), (4, 6)):
        ask(model, request_id, siblings=siblings)
    events = run(model)
    assert [last(events, request_id).usage.cached_tokens for request_id in (1, 2, 3, 4)] == [0, 2, 0, 0]


def test_simulated_reports_its_rows_and_times_and_lets_the_better_class_go_first() -> None:
    clock = FakeClock()
    model = engine(clock, grant=300, width=2, kv_bytes_per_token=10, ttft_s=2.0, tokens_per_s=1.0)
    assert model.scheduling() == SchedulingReport(width=2, headroom_bytes=300, bytes_per_row_token=10.0)
    for request_id, priority in enumerate(("normal", "batch", "interactive", "normal"), start=1):
        ask(model, request_id, max_tokens=3, priority=priority)
    model.step()
    seen = model.scheduling()
    assert (seen.decoding, seen.prefilling, seen.waiting) == (0, 2, 2)
    assert seen.by_priority == PriorityCounts(normal=1, batch=1)
    events = run(model)
    order = [event.request_id for event in events if isinstance(event, Admitted)]
    assert order == [4, 2]
    told = model.scheduling()
    assert (told.ttft.count, told.inter_token.count, told.queue_wait.count) == (4, 8, 4)
    assert told.inter_token.sum_s == 8.0 and told.queue_wait.sum_s == 8.0 and told.ttft.sum_s == 16.0


def test_simulated_capacity_is_what_the_grant_holds() -> None:
    model = engine(grant=1000, kv_bytes_per_token=10)
    assert model.capacity[:3] == (CapacityRow(1, 100), CapacityRow(2, 50), CapacityRow(4, 25))
    model.set_grant(2000)
    assert model.capacity[0] == CapacityRow(1, 200)
    assert engine().capacity == ()
