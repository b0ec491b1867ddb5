"""Log-probabilities from request to event, with a scripted model."""

from __future__ import annotations

import math

import pytest

from engines.errors import InvalidField
from engines.wire import Finished, Sampling, TextDelta, TokenLogprob, TopLogprob
from tests.engines.text.helpers_engine import GREEDY, ask, run, script_engine, submit, text_of


def entries(events: list[object], request_id: int = 1) -> list[TokenLogprob]:
    return [
        entry
        for event in events
        if isinstance(event, TextDelta) and event.request_id == request_id
        for entry in event.logprobs
    ]


def test_each_token_of_the_text_has_an_entry_with_raw_bytes_and_the_end_of_sequence_has_none() -> None:
    emoji = "🙂".encode()
    engine = script_engine(["", "a", emoji[:1], emoji[1:]])
    submit(engine, 1, ask(logprobs=2))
    events = run(engine)
    assert text_of(events) == "a🙂"
    reported = entries(list(events))
    assert [(each.token, each.raw) for each in reported] == [(1, b"a"), (2, emoji[:1]), (3, emoji[1:])]
    for each in reported:
        assert each.logprob == pytest.approx(0.0, abs=1e-6)
        first, second = each.top
        assert first == TopLogprob(each.token, each.raw, each.logprob or 0.0)
        assert second.token == 0 and second.logprob == pytest.approx(-50.0)  # of equals the first
    assert all(len(event.tokens) == len(event.logprobs) for event in events if isinstance(event, TextDelta))


def test_zero_asks_for_the_tokens_own_alone_and_none_for_nothing() -> None:
    engine = script_engine(["", "a", "b"])
    submit(engine, 1, ask(logprobs=0))
    submit(engine, 2, ask())
    events = list[object](run(engine))
    assert [each.top for each in entries(events, 1)] == [(), ()]
    assert entries(events, 2) == []


def test_tokens_that_a_stop_swallowed_are_counted_and_not_reported() -> None:
    engine = script_engine(["", "a", "b E", "N", "D", "x"])
    submit(engine, 1, ask(logprobs=0, stop=("END",)))
    events = run(engine)
    assert text_of(events) == "ab "
    assert [each.token for each in entries(list(events))] == [1, 2]
    end = events[-1]
    assert isinstance(end, Finished) and end.usage.completion_tokens == 4


def test_what_is_reported_is_the_model_s_own_whatever_bias_chose() -> None:
    engine = script_engine(["", "a", "b", "c"])
    submit(engine, 1, ask(logprobs=1, max_tokens=1, sampling=Sampling(temperature=0.0, logit_bias={3: 100.0})))
    (entry,) = entries(list(run(engine)))
    assert (entry.token, entry.raw) == (3, b"c")
    assert entry.logprob == pytest.approx(-50.0)
    assert entry.top[0].token == 1 and math.isclose(entry.top[0].logprob, 0.0, abs_tol=1e-6)


@pytest.mark.parametrize("token", [-1, 5])
def test_a_bias_outside_of_the_vocabulary_is_refused_by_name(token: int) -> None:
    engine = script_engine(["", "a", "b", "c"])
    with pytest.raises(InvalidField, match=rf"logit_bias.*{token}.*0 to 4") as caught:
        engine.prepare(ask(sampling=Sampling(logit_bias={1: 1.0, token: 1.0})))
    assert caught.value.param == "logit_bias"


def test_penalties_reach_the_draw() -> None:
    """Token i is followed by i + 1, but for a token that was there before and is punished."""
    engine = script_engine(["", "a", "b"])
    submit(engine, 1, ask(start=1, max_tokens=1, sampling=GREEDY))
    punished = Sampling(temperature=0.0, repetition_penalty=2.0, logit_bias={1: 60.0})
    submit(engine, 2, ask(start=1, max_tokens=1, sampling=punished))
    events = run(engine)
    assert (text_of(events, 1), text_of(events, 2)) == ("b", "b")  # 60 / 2 < 50
    submit(engine, 3, ask(start=1, max_tokens=1, sampling=Sampling(temperature=0.0, logit_bias={1: 60.0})))
    assert text_of(run(engine), 3) == "a"
