"""Prompts echoed before their answers, scored or not, and siblings' shared prompts in usage; with a scripted model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engines.errors import ContextLengthExceeded, InvalidField, UnsupportedParameter
from engines.wire import (
    Admitted,
    ChatMessage,
    ChatPrompt,
    Event,
    Finished,
    InfillPrompt,
    TextDelta,
    TextPrompt,
    TokenLogprob,
    TokenPrompt,
    Usage,
)
from tests.engines.text.helpers_engine import ScriptTokenizer, ask, run, script_engine, submit, text_of

PIECES = ["a", "b", "c", "d", "e", "f"]


class SpellingTokenizer(ScriptTokenizer):
    """Text is encoded letter by letter; upper case as lower, so that the tokens do not spell what was written."""

    def encode(self, text: str, **options: Any) -> list[int]:
        return [self.pieces.index(letter.lower().encode()) for letter in text]

    def encode_infill(self, prefix: str, suffix: str) -> list[int] | None:
        return self.encode(prefix + suffix)


WRITTEN = TextPrompt(text="aBc")


def echoed(prompt: Any = WRITTEN, **fields: Any) -> list[Event]:
    engine = script_engine(PIECES, tokenizer=SpellingTokenizer(PIECES))
    submit(engine, 1, ask(**{"prompt": prompt, "echo": True} | fields))
    return run(engine)


def deltas(events: Sequence[Event]) -> list[TextDelta]:
    return [event for event in events if isinstance(event, TextDelta)]


def test_the_prompt_comes_first_exactly_as_it_was_written() -> None:
    events = echoed(max_tokens=2)
    assert isinstance(events[0], Admitted)
    assert [(delta.text, delta.tokens) for delta in deltas(events)] == [("aBc", ()), ("d", (3,)), ("e", (4,))]
    assert events[-1] == Finished(request_id=1, reason="length", usage=Usage(prompt_tokens=3, completion_tokens=2))


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        (TokenPrompt(tokens=(2, 1)), "cb"),
        (
            ChatPrompt(messages=(ChatMessage(role="user", content="xyz"),)),
            "aaa",
        ),  # what the script's encoder makes of it
    ],
)
def test_a_prompt_that_is_no_text_is_echoed_as_its_tokens_say(prompt: Any, text: str) -> None:
    assert deltas(echoed(prompt, max_tokens=1))[0].text == text


def test_stops_are_not_looked_for_in_the_prompt_nor_over_its_end() -> None:
    events = echoed(stop=("b", "cd", "e"))
    assert text_of(events) == "aBcd"
    assert isinstance(events[-1], Finished) and events[-1].stop_sequence == "e"


@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_no_tokens_beside_echo_answer_the_prompt_alone(logprobs: int | None) -> None:
    events = echoed(max_tokens=0, logprobs=logprobs)
    assert text_of(events) == "aBc"
    assert not any(delta.tokens for delta in deltas(events))
    assert events[-1] == Finished(request_id=1, reason="length", usage=Usage(prompt_tokens=3))


def test_no_tokens_without_echo_are_refused() -> None:
    engine = script_engine(PIECES)
    with pytest.raises(InvalidField, match=r"max_tokens is 0.*at least 1"):
        engine.prepare(ask(max_tokens=0))
    with pytest.raises(InvalidField, match="max_tokens is -1"):
        engine.prepare(ask(max_tokens=-1, echo=True))


def test_a_prompt_that_fills_the_context_can_be_echoed_but_not_answered() -> None:
    engine = script_engine(PIECES, context=4)
    whole: dict[str, Any] = {"prompt": TokenPrompt(tokens=(0, 1, 2, 3)), "echo": True}
    submit(engine, 1, ask(**whole, max_tokens=0))
    assert text_of(run(engine)) == "abcd"
    for max_tokens in (1, None):
        with pytest.raises(ContextLengthExceeded):
            engine.prepare(ask(**whole, max_tokens=max_tokens))


def test_scored_prompts_have_an_entry_a_token_the_first_without_a_number() -> None:
    events = echoed(TextPrompt(text="aBd"), max_tokens=2, logprobs=1)
    assert text_of(events) == "aBdef"
    entries = [entry for delta in deltas(events) for entry in delta.logprobs]
    assert [entry.token for entry in entries] == [0, 1, 3, 4, 5]
    assert [entry.raw for entry in entries] == [b"a", b"b", b"d", b"e", b"f"]
    assert entries[0] == TokenLogprob(0, b"a", None)
    assert [entry.logprob for entry in entries[1:]] == pytest.approx([0, -50, 0, 0], abs=1e-4)
    assert [entry.top[0].token for entry in entries[1:]] == [1, 2, 4, 5]
    assert [token for delta in deltas(events) for token in delta.tokens] == [4, 5]


def test_a_long_prompt_s_deltas_carry_its_tokens_with_their_own_text() -> None:
    text = "aBcDeFabc" * 9
    events = echoed(TextPrompt(text=text), max_tokens=0, logprobs=0)
    assert text_of(events) == text
    assert len(deltas(events)) > 1
    for delta in deltas(events):
        assert delta.text.lower() == "".join(PIECES[entry.token] for entry in delta.logprobs)


def test_a_prompt_whose_tokens_spell_more_than_was_written_is_still_echoed_exactly() -> None:
    class Verbose(ScriptTokenizer):
        def encode(self, text: str, **options: Any) -> list[int]:
            return [0] * (3 * len(text))

    engine = script_engine(PIECES, tokenizer=Verbose(PIECES))
    submit(engine, 1, ask(prompt=TextPrompt(text="xyz" * 9), echo=True, logprobs=0, max_tokens=0))
    events = run(engine)
    assert text_of(events) == "xyz" * 9
    assert sum(len(delta.logprobs) for delta in deltas(events)) == 81


def test_an_echo_beside_a_suffix_is_refused_by_name() -> None:
    engine = script_engine(PIECES, tokenizer=SpellingTokenizer(PIECES))
    with pytest.raises(UnsupportedParameter, match="echo") as caught:
        engine.prepare(ask(prompt=InfillPrompt(prefix="a", suffix="b"), echo=True))
    assert caught.value.param == "echo"


def test_a_request_of_its_prompt_alone_can_be_cancelled_while_it_is_read() -> None:
    engine = script_engine(PIECES, tokenizer=SpellingTokenizer(PIECES))
    submit(engine, 1, ask(prompt=TextPrompt(text="abc" * 20), echo=True, logprobs=0, max_tokens=0))
    engine.step()
    engine.cancel(1)
    assert engine.step() == [Finished(request_id=1, reason="cancelled", usage=Usage(prompt_tokens=60))]
    assert not engine.busy


@pytest.mark.parametrize("echo", [True, False])
def test_later_siblings_count_the_prompt_they_did_not_read(echo: bool) -> None:
    engine = script_engine(PIECES, tokenizer=SpellingTokenizer(PIECES))
    request = ask(prompt=TextPrompt(text="abc"), max_tokens=2, siblings=4, echo=echo, logprobs=0 if echo else None)
    for number in (1, 2, 3):
        submit(engine, number, request)
    submit(engine, 4, ask(prompt=TextPrompt(text="abc"), max_tokens=2))
    events = run(engine)
    usages = {event.request_id: event.usage.cached_tokens for event in events if isinstance(event, Finished)}
    assert usages == {1: 0, 2: 2, 3: 2, 4: 0}
    text = "abcde" if echo else "de"
    assert [text_of(events, number) for number in (1, 2, 3, 4)] == [text, text, text, "de"]
