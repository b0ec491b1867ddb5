"""Thinking is split from the answer by its marks, however the text is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.text.output import Content, Mark, Thought, output_parser
from engines.text.reasoning import FORMATS, ReasoningFormat
from engines.text.tool_syntax import SYNTAXES
from tests.engines.text.tool_syntax.helpers_golden import CASES, WRITERS, read, syntax

TAGGED = [each for each in FORMATS if not each.channels]
BY_NAME = {each.name: each for each in FORMATS}


def name_of(value: object) -> str | None:
    return value.name if isinstance(value, ReasoningFormat) else None


@pytest.mark.parametrize("reasoning", TAGGED, ids=name_of)
def test_thinking_at_the_beginning(reasoning: ReasoningFormat) -> None:
    for opens, closes in zip(reasoning.opens, reasoning.closes, strict=True):
        text = f"{opens}\nLet me see.\n\nIt is 4.\n{closes}\n\nFour.\n"
        for pieces in ([text], list(text)):
            answer = read(text, reasoning=reasoning, pieces=pieces)
            assert (answer.thought, answer.content) == ("Let me see.\n\nIt is 4.", "Four.\n")


@pytest.mark.parametrize("reasoning", TAGGED, ids=name_of)
def test_thinking_that_the_prompt_began(reasoning: ReasoningFormat) -> None:
    for text in (
        f"\nIt is 4.{reasoning.closes[0]}Four.",
        f"{reasoning.opens[0]}\nIt is 4.{reasoning.closes[0]}\nFour.",  # the model says so again
    ):
        for pieces in ([text], list(text)):
            answer = read(text, reasoning=reasoning, pieces=pieces, starts_in_reasoning=True)
            assert (answer.thought, answer.content) == ("It is 4.", "Four.")


@pytest.mark.parametrize("reasoning", TAGGED, ids=name_of)
def test_thinking_that_breaks_off_is_thinking(reasoning: ReasoningFormat) -> None:
    text = f"{reasoning.opens[0]}It is 4.{reasoning.closes[0][:-1]}"
    answer = read(text, reasoning=reasoning)
    assert (answer.thought, answer.content) == (f"It is 4.{reasoning.closes[0][:-1]}", "")


@pytest.mark.parametrize("reasoning", TAGGED, ids=name_of)
def test_empty_thinking_is_nothing(reasoning: ReasoningFormat) -> None:
    text = f"{reasoning.opens[0]}\n\n{reasoning.closes[0]}\n\nHi"
    assert (read(text, reasoning=reasoning).thought, read(text, reasoning=reasoning).content) == ("", "Hi")
    closed = f"{reasoning.closes[0]}\n\nHi"  # the mark that ends what never began
    assert read(closed, reasoning=reasoning).content == "Hi"


def test_a_tag_later_in_the_answer_is_text() -> None:
    text = "The tag <think> begins thinking, </think> ends it."
    assert read(text, reasoning=BY_NAME["think"]).content == text


def test_marks_that_no_text_would_have_count_anywhere() -> None:
    text = "First.\n<|START_THINKING|>More?<|END_THINKING|>Second."
    answer = read(text, reasoning=BY_NAME["command"])
    assert (answer.thought, answer.content) == ("More?", "First.Second.")


def test_marks_around_the_answer_are_no_content() -> None:
    text = "<|START_THINKING|>Hm<|END_THINKING|><|START_RESPONSE|>Hello.<|END_RESPONSE|>"
    answer = read(text, reasoning=BY_NAME["command"])
    assert (answer.thought, answer.content) == ("Hm", "Hello.")


def test_marks_around_the_answer_after_thinking_tags() -> None:
    text = "<think>Hm</think>\n<response>Hello.</response>"
    answer = read(text, reasoning=BY_NAME["granite33"])
    assert (answer.thought, answer.content) == ("Hm", "Hello.")


def test_unsplit_thinking_stays_in_the_content_and_is_counted() -> None:
    text = "<think>\nHm\n</think>\n\nHello."
    parser = output_parser(BY_NAME["think"], split=False)
    parts = parser.feed("<think>\nH")
    assert parser.in_reasoning
    parts += parser.feed("m\n</think>\n\nHello.")
    assert not parser.in_reasoning
    parts += parser.finish()
    assert all(isinstance(part, Content) for part in parts)
    assert "".join(part.source for part in parts) == text


@pytest.mark.parametrize("name", sorted({each.name for each in SYNTAXES} - {"harmony"}))
def test_calls_after_thinking(name: str) -> None:
    calls = WRITERS[name](CASES["parallel"])
    text = f"<think>\nI need {{the}} [weather].\n</think>\n\n{calls}"
    for pieces in ([text], list(text)):
        answer = read(text, syntax(name), BY_NAME["think"], pieces)
        assert answer.thought == "I need {the} [weather]."
        assert answer.content == ""
        assert answer.parsed == CASES["parallel"]


@pytest.mark.parametrize("name", sorted(each.name for each in SYNTAXES if each.closes_thinking))
def test_control_tokens_of_calls_end_thinking(name: str) -> None:
    text = f"<think>I need the weather.\n{WRITERS[name](CASES['single'])}"
    answer = read(text, syntax(name), BY_NAME["think"])
    assert (answer.thought, answer.content) == ("I need the weather.", "")
    assert answer.parsed == CASES["single"]


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm45"])
def test_a_call_that_is_thought_of_is_not_made(name: str) -> None:
    call = WRITERS[name](CASES["single"])
    text = f"<think>Should I say {call}?</think>No."
    answer = read(text, syntax(name), BY_NAME["think"])
    assert (answer.calls, answer.content) == ([], "No.")
    assert call in answer.thought


def test_a_broken_call_in_thinking_is_thinking() -> None:
    text = "<think>Say [TOOL_CALLS] now?</think>No."
    answer = read(text, syntax("mistral"), BY_NAME["think"])
    assert (answer.thought, answer.content) == ("Say [TOOL_CALLS] now?", "No.")


@given(data=st.data())
def test_any_pieces_of_any_marks_say_the_same(data: st.DataObject) -> None:
    reasoning = data.draw(st.sampled_from(TAGGED))
    name = data.draw(st.sampled_from(sorted({each.name for each in SYNTAXES} - {"harmony"})))
    pieces = [
        *reasoning.marks,
        " ",
        "\n",
        "words",
        WRITERS[name](CASES["single"]),
        WRITERS[name](CASES["parallel"])[:-9],
    ]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=8)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    split = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    started = data.draw(st.booleans())
    one = read(text, syntax(name), reasoning, starts_in_reasoning=started)
    other = read(text, syntax(name), reasoning, split, starts_in_reasoning=started)
    assert (one.thought, one.content, one.calls) == (other.thought, other.content, other.calls)
    kept = read(text, syntax(name), reasoning, split, starts_in_reasoning=started, split=False)
    assert kept.thought == "" and kept.calls == one.calls


def test_reasoning_is_where_the_model_is() -> None:
    parser = output_parser(BY_NAME["think"], starts_in_reasoning=True)
    assert parser.in_reasoning
    assert parser.feed("Hm") == [Thought("Hm")]
    assert parser.in_reasoning
    assert parser.feed("</think>") == [Mark("</think>")]
    assert not parser.in_reasoning
    assert parser.feed("Hi") == [Content("Hi")]
