"""Conversations without their oldest part."""

from __future__ import annotations

import pytest

from engines.wire import ChatMessage, ChatPrompt, TextPrompt, TextRequest
from gateway.errors import ContextExceeded
from gateway.protocols.truncation import shortened


def say(role: str, text: str = "x" * 10) -> ChatMessage:
    return ChatMessage(role=role, content=text)


def call(id: str) -> ChatMessage:
    calls = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    return ChatMessage(role="assistant", content=None, extra={"tool_calls": calls})


def result(id: str) -> ChatMessage:
    return ChatMessage(role="tool", content="y" * 10, extra={"tool_call_id": id})


def too_long(tokens: int | None = None, most: int | None = None) -> ContextExceeded:
    error = ContextExceeded("too long")
    error.tokens, error.most_tokens = tokens, most
    return error


def rest(messages: list[ChatMessage], error: ContextExceeded) -> list[ChatMessage] | None:
    shorter = shortened(TextRequest(prompt=ChatPrompt(messages=tuple(messages))), error)
    if shorter is None:
        return None
    assert isinstance(shorter.prompt, ChatPrompt)
    return list(shorter.prompt.messages)


SYSTEM = say("system")
TURNS = [[say("user", f"{i}" * 10), say("assistant", f"{i}" * 10)] for i in range(4)]
TALK = [SYSTEM, *TURNS[0], *TURNS[1], *TURNS[2], *TURNS[3], say("user", "last")]


@pytest.mark.parametrize(
    ("error", "dropped"),
    [(too_long(), 1), (too_long(100, 99), 1), (too_long(100, 60), 2), (too_long(100, 1), 4), (too_long(0, 0), 1)],
)
def test_oldest_turns_go_as_far_as_the_numbers_say(error: ContextExceeded, dropped: int) -> None:
    assert rest(TALK, error) == [SYSTEM, *TALK[1 + 2 * dropped :]]


def test_what_is_before_the_first_user_goes_first() -> None:
    talk = [SYSTEM, say("assistant", "welcome"), say("user"), say("assistant"), say("user", "last")]
    assert rest(talk, too_long(100, 99)) == [SYSTEM, *talk[2:]]


def test_a_call_goes_with_its_result_and_never_the_last_one() -> None:
    turn = [SYSTEM, say("user", "do"), call("1"), result("1"), call("2"), result("2"), call("3"), result("3")]
    assert rest(turn, too_long(100, 99)) == [*turn[:2], *turn[4:]]
    assert rest(turn, too_long(100, 1)) == [*turn[:2], *turn[6:]]
    assert rest([*turn[:2], *turn[6:]], too_long(100, 1)) is None


def test_last_turn_and_system_messages_stay_and_then_there_is_nothing_to_leave_out() -> None:
    assert rest([SYSTEM, say("user", "long" * 100)], too_long(100, 1)) is None
    assert rest([SYSTEM], too_long()) is None
    assert shortened(TextRequest(prompt=TextPrompt(text="x")), too_long()) is None


def test_repeated_it_comes_to_an_end() -> None:
    talk: list[ChatMessage] | None = TALK
    lengths = []
    while talk is not None:
        lengths.append(len(talk))
        talk = rest(talk, too_long())
    assert lengths == sorted(set(lengths), reverse=True)
    assert lengths[-1] == 2
