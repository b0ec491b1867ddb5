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
    ToolCallDelta,
    ToolCallStarted,
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
    call = ToolCallStarted(request_id=1, index=0, id="c", name="f")
    events: list[Event] = [delta("a", 1), delta("b", 2), call, delta("c", 3)]
    assert list(gatherer.join(events)) == [delta("ab", 1, 2), call]
    assert list(gatherer.join([finished()])) == [delta("c", 3), finished()]


def test_gatherer_joins_thinking_and_arguments_with_their_own_kind_and_call_only() -> None:
    def thought(text: str, *tokens: int) -> ReasoningDelta:
        return ReasoningDelta(request_id=1, text=text, tokens=tokens)

    def arguments(index: int, text: str, *tokens: int) -> ToolCallDelta:
        return ToolCallDelta(request_id=1, index=index, arguments=text, tokens=tokens)

    gatherer = Gatherer(FakeClock().now)
    gatherer.hold(1)
    assert list(gatherer.join([thought("h", 1), thought("m", 2)])) == [thought("h", 1)]
    events: list[Event] = [
        thought(".", 3), delta("a", 4), delta("b", 5),
        arguments(0, "{", 6), arguments(0, "}", 7), arguments(1, "{}", 8), thought("?", 9),
    ]  # fmt: skip
    assert list(gatherer.join(events)) == [
        thought("m.", 2, 3), delta("ab", 4, 5), arguments(0, "{}", 6, 7), arguments(1, "{}", 8),
    ]  # fmt: skip
    assert list(gatherer.join([finished()])) == [thought("?", 9), finished()]


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
