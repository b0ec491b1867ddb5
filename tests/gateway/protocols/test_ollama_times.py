"""The times of an answer, by a clock that a test turns."""

from __future__ import annotations

from engines.wire import Admitted, Finished, ReasoningDelta, TextDelta, Usage
from gateway.protocols.ollama_times import AnswerTimes

USAGE = Usage(prompt_tokens=7, completion_tokens=5)


class Clock:
    def __init__(self) -> None:
        self.now = 100

    def __call__(self) -> int:
        return self.now


def test_times_are_of_their_spans() -> None:
    clock = Clock()
    times = AnswerTimes(clock)
    for at, event in (
        (110, None),
        (130, Admitted(request_id=1, prompt_tokens=7)),
        (170, ReasoningDelta(request_id=1, text="Hm")),
        (200, TextDelta(request_id=1, text="x")),
        (250, Finished(request_id=1, reason="stop", usage=USAGE)),
    ):
        clock.now = at
        if event is None:
            times.leased()
        else:
            times.seen(event)
    clock.now = 999  # a slow client is sent it later
    assert times.fields(USAGE) == {
        "total_duration": 150,
        "load_duration": 10,
        "prompt_eval_count": 7,
        "prompt_eval_duration": 40,
        "eval_count": 5,
        "eval_duration": 80,
    }


def test_times_of_an_answer_without_a_token_have_no_evaluation() -> None:
    clock = Clock()
    times = AnswerTimes(clock)
    times.seen(Admitted(request_id=1, prompt_tokens=7))
    clock.now = 130
    times.seen(Finished(request_id=1, reason="stop", usage=USAGE))
    fields = times.fields(USAGE)
    assert (fields["prompt_eval_duration"], fields["eval_duration"]) == (30, 0)


def test_times_of_a_load_are_two() -> None:
    clock = Clock()
    times = AnswerTimes(clock)
    clock.now = 140
    times.leased()
    clock.now = 141
    assert times.fields() == {"total_duration": 41, "load_duration": 40}
