"""Gathering the text of answers that nobody reads before their end."""

from __future__ import annotations

from engines.gatherer import HOLD_CHARACTERS, HOLD_S, HOLD_TOKENS, Gatherer
from engines.wire import (
    Admitted,
    Event,
    Finished,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    Usage,
)
from tests.engines.helpers_clock import FakeClock


def delta(text: str, *tokens: int, request_id: int = 1) -> TextDelta:
    logprobs = tuple(TokenLogprob(token=token, raw=b"", logprob=0.0) for token in tokens)
    return TextDelta(request_id=request_id, text=text, tokens=tokens, logprobs=logprobs)


def finished(request_id: int = 1) -> Finished:
    return Finished(request_id=request_id, reason="stop", usage=Usage())


def begun() -> tuple[Gatherer, FakeClock]:
    """One whose request 1 is held and has sent its first text."""
    clock = FakeClock()
    gatherer = Gatherer(clock.now)
    gatherer.hold(1)
    assert list(gatherer.join([delta("first", 0)])) == [delta("first", 0)]
    return gatherer, clock


def test_gatherer_leaves_streamed_answers_alone() -> None:
    gatherer, _ = begun()
    events: list[Event] = [delta("a", 1, request_id=2), finished(2)]
    assert list(gatherer.join(events)) == events


def test_gatherer_first_text_leaves_at_once_and_the_rest_at_the_end() -> None:
    gatherer = Gatherer(FakeClock().now)
    gatherer.hold(1)
    admitted = Admitted(request_id=1, prompt_tokens=1)
    assert list(gatherer.join([admitted, delta("a", 1), delta("b", 2)])) == [admitted, delta("a", 1)]
    assert list(gatherer.join([delta("c", 3)])) == []
    assert list(gatherer.join([delta("d", 4), finished()])) == [delta("bcd", 2, 3, 4), finished()]


def test_gatherer_forgets_an_answer_that_ended() -> None:
    gatherer, _ = begun()
    gatherer.join([finished()])
    assert list(gatherer.join([delta("a", 1), delta("b", 2)])) == [delta("a", 1), delta("b", 2)]


def test_gatherer_keeps_the_order_of_other_events() -> None:
    gatherer, _ = begun()
    thought = ReasoningDelta(request_id=1, text="hm")
    events: list[Event] = [delta("a", 1), delta("b", 2), thought, delta("c", 3)]
    assert list(gatherer.join(events)) == [delta("ab", 1, 2), thought]
    assert list(gatherer.join([finished()])) == [delta("c", 3), finished()]


def test_gatherer_holds_for_a_moment_only() -> None:
    gatherer, clock = begun()
    assert list(gatherer.join([delta("a", 1)])) == []
    clock.sleep(HOLD_S)
    assert list(gatherer.join([delta("b", 2)])) == [delta("ab", 1, 2)]
    assert list(gatherer.join([delta("c", 3)])) == []


def test_gatherer_holds_so_many_tokens_and_characters_only() -> None:
    gatherer, _ = begun()
    tokens = range(HOLD_TOKENS)
    sent = [event for token in tokens for event in gatherer.join([delta("", token)])]
    assert sent == [delta("", *tokens)]
    half = "x" * (HOLD_CHARACTERS // 2)
    assert list(gatherer.join([delta(half, 1)])) == []
    assert list(gatherer.join([delta(half, 2)])) == [delta(half * 2, 1, 2)]
