"""Grammars, calls and thinking through the engine, with a scripted model: token i is followed by token i + 1, if it may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engines.errors import InvalidField
from engines.text.answer_form import AnswerForm
from engines.text.constraints.row_constraint import RowConstraint
from engines.text.reasoning import FORMATS
from engines.text.tool_syntax import syntax_named
from engines.wire import (
    ChatMessage,
    ChatPrompt,
    Event,
    Failed,
    Finished,
    Grammar,
    Reasoning,
    ReasoningDelta,
    TextDelta,
    TextRequest,
    Tool,
    ToolCallDelta,
    ToolCallStarted,
    ToolUse,
)
from tests.engines.text.helpers_engine import GREEDY, ScriptTokenizer, ask, run, script_engine, submit, text_of

THINK = next(each for each in FORMATS if each.name == "think")
TOOLS = ToolUse(tools=(Tool(name="key"),))
CALL = ("<tool_call>", '\n{"name": "key", ', '"arguments": {"room"', ": 7}}", "\n</tool_call>")
FORM = AnswerForm(THINK, may_think=True, syntax=syntax_named("hermes"))


def chat(**fields: Any) -> TextRequest:
    prompt = ChatPrompt(messages=(ChatMessage(role="user", content="x"),))
    return TextRequest(**{"prompt": prompt, "sampling": GREEDY, "tools": TOOLS} | fields)


def answered(pieces: Sequence[str], form: AnswerForm = FORM, **fields: Any) -> list[Event]:
    """What the engine says when the model writes these pieces; the first token is the prompt."""
    engine = script_engine(["", *pieces], form=form)
    submit(engine, 1, chat(**fields))
    return run(engine)


def finished(events: Sequence[Event]) -> Finished:
    last = events[-1]
    assert isinstance(last, Finished)
    return last


def test_thinking_content_and_calls_come_as_events_of_their_own() -> None:
    events = answered(["<think>", "which?", "</think>", "\n\n", "This one.", *CALL])
    assert [(type(event), getattr(event, "text", "")) for event in events[1:3]] == [
        (ReasoningDelta, "which?"),
        (TextDelta, "This one."),
    ]
    start = events[3]
    assert isinstance(start, ToolCallStarted) and (start.index, start.name) == (0, "key")
    assert "".join(e.arguments for e in events if isinstance(e, ToolCallDelta)) == '{"room": 7}'
    end = finished(events)
    assert (end.reason, end.usage.reasoning_tokens, end.usage.completion_tokens) == ("tool_calls", 2, 11)


def test_answer_that_is_cut_in_a_call_ends_with_length() -> None:
    events = answered(CALL, max_tokens=4)
    assert any(isinstance(event, ToolCallStarted) for event in events)
    assert finished(events).reason == "length"


def test_call_that_is_cut_right_behind_its_end_still_ends_with_length() -> None:
    assert finished(answered(CALL, max_tokens=len(CALL))).reason == "length"


def test_first_call_ends_an_answer_without_parallel_calls() -> None:
    events = answered([*CALL, "more"], tools=ToolUse(tools=TOOLS.tools, parallel=False))
    assert finished(events).reason == "tool_calls"
    assert finished(events).usage.completion_tokens == len(CALL) - 1  # a call is over with its arguments
    assert text_of(events) == ""


def test_thinking_that_nobody_wants_apart_stays_in_the_text() -> None:
    events = answered(["<think>", "which?", "</think>", "This."], reasoning=Reasoning(split=False))
    assert text_of(events) == "<think>which?</think>This."
    assert finished(events).usage.reasoning_tokens == 2


def test_plain_prompts_have_no_marks() -> None:
    engine = script_engine(["", "<think>", "a", "</think>", *CALL], form=FORM)
    submit(engine, 1, ask())
    events = run(engine)
    assert text_of(events) == "<think>a</think>" + "".join(CALL)
    assert finished(events).reason == "stop"


def test_grammar_decides_what_the_model_would_not_have_said() -> None:
    events = answered(["no", "yes", "a", "b"], AnswerForm(), tools=None, grammar=Grammar(kind="regex", source="yes|ab"))
    assert text_of(events) in ("yes", "ab")
    assert finished(events).reason == "stop"


def test_grammar_that_is_cut_ends_with_length() -> None:
    grammar = Grammar(kind="regex", source="[ab]{9}")
    events = answered(["a", "b"], AnswerForm(), tools=None, grammar=grammar, max_tokens=3)
    assert (text_of(events), finished(events).reason) == ("aba", "length")


def test_budget_closes_thinking() -> None:
    form = AnswerForm(THINK, may_think=True, opened=True)
    pieces = ["a", "b", "c", "d", "</think>", "yes"]
    engine = script_engine(["", *pieces], form=form, tokenizer=SpellingTokenizer(["", *pieces]))
    submit(engine, 1, chat(tools=None, reasoning=Reasoning(budget=2)))
    events = run(engine)
    assert "".join(e.text for e in events if isinstance(e, ReasoningDelta)) == "ab"
    assert text_of(events) == "yes"


class SpellingTokenizer(ScriptTokenizer):
    """Pieces are found by their text."""

    def encode(self, text: str, **options: Any) -> list[int]:
        return [self.pieces.index(text.encode())] if text.encode() in self.pieces else [0] * len(text)


def test_what_cannot_be_enforced_is_refused_before_anything_is_done() -> None:
    engine = script_engine(["", "a"], form=FORM)
    bad = Tool(name="f", parameters={"not": {}})
    for fields, param in (
        ({"grammar": Grammar(kind="json_schema", source='{"not": {}}'), "tools": None}, "response_format"),
        ({"tools": ToolUse(tools=(bad,), choice="required")}, "tools[0].function.parameters"),
    ):
        with pytest.raises(InvalidField) as caught:
            engine.prepare(chat(**fields))
        assert caught.value.param == param
    assert not engine.busy


def test_row_whose_grammar_fails_says_so_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = RowConstraint.push

    def push(self: RowConstraint, token: int) -> None:
        pushed(self, token)
        self.failure = "its grammar became too complex"

    engine = script_engine(["", "a", "b"], form=AnswerForm())
    monkeypatch.setattr(RowConstraint, "push", push)
    submit(engine, 1, chat(tools=None, grammar=Grammar(kind="regex", source="[ab]+")))
    submit(engine, 2, chat(tools=None))
    events = run(engine)
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.request_id == 1 and "too complex" in failed.error.message
    assert text_of(events, 2) == "ab"
