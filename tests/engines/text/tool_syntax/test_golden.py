"""Golden calls of every syntax: whole, cut anywhere, broken off anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.text.output import CallArguments, CallStart
from engines.text.tool_syntax import SYNTAXES
from tests.engines.text.tool_syntax.helpers_golden import CASES, TOOLS, UNMARKED, WRITERS, read, syntax

NAMES = [each.name for each in SYNTAXES]


def test_writers_cover_the_table() -> None:
    assert sorted(WRITERS) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_example_is_the_documented_call(name: str) -> None:
    assert read(syntax(name).example, syntax(name)).parsed == [("weather", {"city": "Oslo"})]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_calls_whole_and_one_character_at_a_time(name: str, case: str) -> None:
    text = WRITERS[name](CASES[case])
    whole = read(text, syntax(name))
    assert whole.parsed == CASES[case]
    assert whole.content == ""
    assert whole.complete
    slow = read(text, syntax(name), pieces=list(text))
    assert (slow.calls, slow.content) == (whole.calls, "")


@pytest.mark.parametrize("name", NAMES)
def test_calls_split_anywhere(name: str) -> None:
    text = WRITERS[name](CASES["parallel"])
    for cut in range(1, len(text)):
        answer = read(text, syntax(name), pieces=[text[:cut], text[cut:]])
        assert answer.parsed == CASES["parallel"], cut
        assert answer.content == ""


@pytest.mark.parametrize("name", NAMES)
def test_calls_broken_off_anywhere_are_never_called_complete(name: str) -> None:
    text = WRITERS[name](CASES["nested"] + CASES["types"])
    for cut in range(len(text)):
        answer = read(text[:cut], syntax(name))
        wanted = CASES["nested"] + CASES["types"]
        assert answer.parsed == wanted[: len(answer.calls)], cut
        assert len(answer.broken) <= 1
        whole = read(text[:cut], syntax(name), whole=True)
        assert whole.calls == answer.calls
        assert not whole.broken
        if answer.broken:
            assert whole.content.strip() and text[:cut].endswith(whole.content)


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("generic", "</tool_call>"),
        ("hermes", "</tool_call>"),
        ("granite", "</tool_call>"),
        ("qwen3_coder", "</tool_call>"),
        ("nemotron", "</TOOLCALL>"),
        ("functionary_v31", "</function>"),
        ("minimax_m1", "</tool_calls>"),
    ],
)
def test_closing_mark_broken_off_is_no_text(name: str, mark: str) -> None:
    calls = syntax(name).example
    if mark not in calls:  # optional, and not written by the example's models
        calls += mark
    before = calls[: calls.rindex(mark)]
    for length in range(1, len(mark)):
        for whole in (False, True):
            answer = read(before + mark[:length], syntax(name), whole=whole)
            assert (answer.parsed, answer.content, answer.broken) == ([("weather", {"city": "Oslo"})], "", []), length
    told = read(f"{before}{mark[:2]} and so on", syntax(name))
    assert told.content.endswith("and so on") and mark[:2] in told.content


@pytest.mark.parametrize("name", sorted(set(NAMES) - UNMARKED - {"harmony"}))
def test_calls_between_texts(name: str) -> None:
    calls = WRITERS[name](CASES["single"])
    answer = read(f"I will look.\n\n{calls}\nThat is all.", syntax(name))
    assert answer.parsed == CASES["single"]
    assert answer.content == "I will look.That is all."


@pytest.mark.parametrize("name", NAMES)
def test_text_without_calls_is_told_unaltered(name: str) -> None:
    text = "A < B, {x: [1]} \"q\" 'r' <b>tag</b> <tool <|tool [T <func ``` >> Act\n- weather\n" * 3 + "\n"
    if name == "harmony":
        text = text.replace("<|tool", "<|mess")
    assert read(text, syntax(name)).content == text
    assert read(text, syntax(name), pieces=list(text)).content == text


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_any_pieces_of_any_mixture_say_the_same(name: str, data: st.DataObject) -> None:
    ends = [mark for mark in (*syntax(name).marks, "\n", " ", "{", "}", '"', "weather", "[", "]") if mark]
    pieces = [WRITERS[name](calls) for calls in CASES.values()] + ends
    text = "".join(
        piece[: data.draw(st.integers(0, len(piece)))] if data.draw(st.booleans()) else piece
        for piece in data.draw(st.lists(st.sampled_from(pieces), max_size=5))
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    split = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    one, other = read(text, syntax(name)), read(text, syntax(name), pieces=split)
    assert (one.content, one.calls, one.broken) == (other.content, other.calls, other.broken)
    read(text, syntax(name), pieces=split, whole=True)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"glm45", "gemma4", "function_gemma"}))
def test_name_and_arguments_come_before_the_call_is_complete(name: str) -> None:
    text = WRITERS[name](CASES["brackets"])
    half = text[: text.index("c ]")]
    parser_parts = read(half, syntax(name)).parts
    starts = [part for part in parser_parts if isinstance(part, CallStart)]
    assert [start.name for start in starts] == ["search"]


@pytest.mark.parametrize("name", ["hermes", "mistral", "qwen3_coder", "glm45", "harmony", "deepseek_v3", "llama3"])
def test_a_long_argument_is_streamed(name: str) -> None:
    text = WRITERS[name]([("search", {"query": "word " * 50})])
    answer = read(text, syntax(name), pieces=[text[at : at + 10] for at in range(0, len(text), 10)])
    assert sum(isinstance(part, CallArguments) for part in answer.parts) > 20
    assert answer.parsed == [("search", {"query": "word " * 50})]


@pytest.mark.parametrize("name", sorted(set(NAMES) - UNMARKED))
def test_a_function_that_there_is_not_is_a_call_where_marks_say_so(name: str) -> None:
    text = WRITERS[name]([("made_up", {"a": "b"})])
    assert read(text, syntax(name)).parsed == [("made_up", {"a": "b"})]


@pytest.mark.parametrize("name", sorted(UNMARKED))
def test_a_function_that_there_is_not_is_text_where_no_mark_says_more(name: str) -> None:
    text = WRITERS[name]([("made_up", {"a": "b"})])
    answer = read(text, syntax(name))
    assert (answer.calls, answer.content) == ([], text)


def test_tools_are_told_apart_by_name_alone() -> None:
    assert len({tool.name for tool in TOOLS}) == len(TOOLS)
