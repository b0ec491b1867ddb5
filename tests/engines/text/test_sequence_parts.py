"""Tokens to content, thinking and calls, over any split of a text into tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given

from engines.text.output import output_parser
from engines.text.reasoning import FORMATS
from engines.text.sequence import Delta, TextSequence
from engines.text.tool_syntax import syntax_named
from engines.wire import ReasoningDelta, TextDelta, TokenLogprob, Tool, ToolCallDelta, ToolCallStarted
from tests.engines.text.helpers_engine import ScriptDetokenizer
from tests.engines.text.test_sequence import CUTS, PAUSES, split

THINK = next(each for each in FORMATS if each.name == "think")
TOOLS = (Tool(name="key"),)
CALL = '<tool_call>\n{"name": "key", "arguments": {"room": "é 7"}}\n</tool_call>'
TEXT = f"<think>\nwhich room?\n</think>\n\nThe key is é {CALL}\n{CALL} there"


def sequence_of(pieces: Sequence[bytes], stops: Sequence[str] = (), *, one_call: bool = False) -> TextSequence:
    parser = output_parser(THINK, syntax_named("hermes"), TOOLS)
    return TextSequence(1, 3, ScriptDetokenizer(pieces), stops, parser, one_call=one_call)


def deltas(sequence: TextSequence, pieces: Sequence[bytes], pauses: Sequence[bool] = (True,)) -> list[Delta]:
    taken: list[Delta] = []
    for token, piece in enumerate(pieces):
        sequence.push(token, TokenLogprob(token, piece, -float(token)))
        if sequence.over:
            break
        if pauses[token % len(pauses)]:
            taken += sequence.take()
    else:
        sequence.end()
    return taken + sequence.take()


def content(got: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in got if isinstance(delta, TextDelta))


@given(cuts=CUTS, pauses=PAUSES)
def test_any_split_gives_the_same_parts_and_each_token_once(cuts: list[int], pauses: list[bool]) -> None:
    pieces = split(TEXT, cuts)
    sequence = sequence_of(pieces)
    got = deltas(sequence, pieces, pauses)
    assert "".join(delta.text for delta in got if isinstance(delta, ReasoningDelta)) == "which room?"
    assert content(got) == "The key is éthere"
    starts = [delta for delta in got if isinstance(delta, ToolCallStarted)]
    assert [(start.index, start.name) for start in starts] == [(0, "key"), (1, "key")]
    for start in starts:
        fragments = [d.arguments for d in got if isinstance(d, ToolCallDelta) and d.index == start.index]
        assert json.loads("".join(fragments)) == {"room": "é 7"}
    covered = [token for delta in got for token in delta.tokens]
    assert covered == sorted(set(covered))
    assert sequence.completion_tokens == len(pieces)
    assert sequence.reason == "tool_calls"
    for delta in got:
        if isinstance(delta, TextDelta):
            assert [entry.token for entry in delta.logprobs] == list(delta.tokens)


@given(cuts=CUTS, pauses=PAUSES)
def test_tokens_of_content_are_those_whose_text_it_is(cuts: list[int], pauses: list[bool]) -> None:
    """With cuts at the marks' borders no token is of two parts, and tokens spell the content they are handed on with."""
    before, after = "<think>where?</think>", "<tool_call>"
    middle = "Here it is, é."
    pieces = [*split(before, cuts), *split(middle, cuts), after.encode()]
    got = deltas(sequence_of(pieces), pieces, pauses)
    tokens = [token for delta in got if isinstance(delta, TextDelta) for token in delta.tokens]
    assert content(got) == middle + after
    assert b"".join(pieces[token] for token in tokens) == (middle + after).encode()


@pytest.mark.parametrize("stop", ["room", "which", "arguments", "key", "</think>", "tool_call"])
def test_stop_strings_are_looked_for_in_content_alone(stop: str) -> None:
    text = f"<think>which room?</think>Yes.{CALL}"
    pieces = [character.encode() for character in text]
    sequence = sequence_of(pieces, [stop])
    assert content(deltas(sequence, pieces)) == "Yes."
    assert sequence.stop_sequence is None and sequence.reason == "tool_calls"


def test_stop_string_ends_the_answer_before_what_follows() -> None:
    pieces = [b"<think>a</think>", b"one tw", b"o three", CALL.encode()]
    sequence = sequence_of(pieces, ["two"])
    got = deltas(sequence, pieces)
    assert content(got) == "one "
    assert (sequence.stop_sequence, sequence.reason) == ("two", "stop")
    assert not any(isinstance(delta, ToolCallStarted) for delta in got)


def test_no_stop_string_reaches_across_a_call() -> None:
    pieces = [b"The end", CALL.encode(), b"less"]
    sequence = sequence_of(pieces, ["endless"])
    got = deltas(sequence, pieces)
    assert [type(delta) for delta in got[:3]] == [TextDelta, TextDelta, ToolCallStarted]
    assert content(got) == "The endless" and sequence.stop_sequence is None


def test_first_call_is_the_last_where_only_one_is_wanted() -> None:
    pieces = [CALL.encode(), b"\n", CALL.encode()]
    sequence = sequence_of(pieces, one_call=True)
    got = deltas(sequence, pieces)
    assert sequence.over and sequence.reason == "tool_calls"
    assert [delta.index for delta in got if isinstance(delta, ToolCallStarted)] == [0]
    assert sequence.completion_tokens == 1


def test_call_that_breaks_off_is_no_call() -> None:
    pieces = [CALL[:50].encode()]
    sequence = sequence_of(pieces)
    deltas(sequence, pieces)
    assert sequence.reason == "stop"


def test_tokens_of_thinking_are_counted() -> None:
    pieces = [b"<think>", b"a", b"b", b"</think>", b"yes"]
    sequence = sequence_of(pieces)
    deltas(sequence, pieces)
    assert sequence.usage.reasoning_tokens == 3  # the opening mark, too
    assert sequence.usage.completion_tokens == 5
