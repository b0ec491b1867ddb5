"""gpt-oss's channels."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engines.text.output import output_parser
from engines.text.reasoning import FORMATS
from tests.engines.text.tool_syntax.helpers_golden import Answer, read, syntax

HARMONY = FORMATS[0]
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>'
THINKING = "<|channel|>analysis<|message|>Hm, 2 + 2.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Four.<|return|>"


def answer_of(
    text: str, pieces: list[str] | None = None, *, starts_in_reasoning: bool = False, split: bool = True
) -> Answer:
    return read(text, syntax("harmony"), HARMONY, pieces, starts_in_reasoning=starts_in_reasoning, split=split)


def test_thinking_then_the_answer() -> None:
    text = THINKING + FINAL
    for pieces in ([text], list(text)):
        answer = answer_of(text, pieces)
        assert (answer.thought, answer.content, answer.calls) == ("Hm, 2 + 2.", "Four.", [])


def test_a_preamble_is_content_and_a_message_to_a_function_a_call() -> None:
    preamble = "<|start|>assistant<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant"
    answer = answer_of(THINKING + preamble + CALL)
    assert (answer.thought, answer.content) == ("Hm, 2 + 2.", "I will look.")
    assert answer.parsed == [("weather", {"city": "Oslo"})]


def test_the_recipient_may_stand_with_the_role() -> None:
    text = '<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>'
    assert answer_of(text).parsed == [("weather", {"city": "Oslo"})]


def test_the_answer_may_begin_with_the_recipient() -> None:
    text = ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>'
    for pieces in ([text], list(text)):
        assert answer_of(text, pieces).parsed == [("weather", {"city": "Oslo"})]


def test_calls_in_the_analysis_channel_are_calls() -> None:
    text = '<|channel|>analysis to=browser.search code<|message|>{"query": "x"}<|call|>'
    assert answer_of(text).parsed == [("browser.search", {"query": "x"})]


def test_without_headers_it_is_the_answer() -> None:
    assert answer_of("Four.").content == "Four."


def test_a_prompt_that_ends_in_the_analysis() -> None:
    answer = answer_of("Hm.<|end|>" + FINAL, starts_in_reasoning=True)
    assert (answer.thought, answer.content) == ("Hm.", "Four.")


def test_a_missing_end_mark_ends_with_the_next_header() -> None:
    answer = answer_of("<|channel|>analysis<|message|>Hm." + FINAL)
    assert (answer.thought, answer.content) == ("Hm.", "Four.")


def test_arguments_that_are_no_json_are_content_with_their_header() -> None:
    text = "<|channel|>commentary to=functions.weather<|message|>Oslo, please<|call|>"
    answer = answer_of(text)
    assert answer.calls == []
    assert answer.content == text.removesuffix("<|call|>")


def test_a_call_that_nobody_may_make_is_content() -> None:
    answer = read(CALL, None, HARMONY)
    assert answer.calls == []
    assert answer.content == CALL.removesuffix("<|call|>")


def test_what_is_for_a_tool_that_nobody_offered_is_no_thinking() -> None:
    text = "<|channel|>analysis to=python code<|message|>print(1)<|call|>"
    answer = read(text, None, HARMONY)
    assert (answer.thought, answer.content) == ("", text.removesuffix("<|call|>"))


def test_a_header_without_end_is_content() -> None:
    text = "<|channel|>final" + "x" * 600
    assert answer_of(text).content == text
    assert answer_of("<|channel|>fin").content == "<|channel|>fin"


def test_unsplit_thinking_stays_in_the_content() -> None:
    answer = answer_of(THINKING + FINAL, split=False)
    assert answer.thought == ""
    assert answer.content == THINKING + "Four."


def test_thinking_is_known_while_it_lasts() -> None:
    parser = output_parser(HARMONY)
    states = []
    for piece in ("<|channel|>", "analysis", "<|message|>", "Hm", "<|end|>", "<|start|>"):
        parser.feed(piece)
        states.append(parser.in_reasoning)
    assert states == [False, False, True, True, False, False]


@given(data=st.data())
def test_any_pieces_say_the_same(data: st.DataObject) -> None:
    pieces = [THINKING, FINAL, CALL, CALL[:-20], "text", "<|end|>", "<|start|>", "<|channel|>", "<|message|>", " to=x "]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces), max_size=6)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    split = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    one, other = answer_of(text), answer_of(text, split)
    assert (one.thought, one.content, one.calls, one.broken) == (
        other.thought,
        other.content,
        other.calls,
        other.broken,
    )
