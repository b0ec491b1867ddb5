"""One row's position: grammar, thinking before it, and the budget of thinking."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from engines.text.constraints.marks import ThinkingMarks
from engines.text.constraints.row_constraint import ConstraintPlan, RowConstraint
from engines.text.reasoning import ReasoningFormat
from tests.engines.text.constraints.helpers_constraints import (
    allowed,
    grammar_of,
    ids,
    make_tokenizer,
    spell,
    texts,
    vocabulary,
)

TAGS = ReasoningFormat("tags", ("<think>",), ("</think>",), ())
PROSE = ReasoningFormat("prose", ("I muse:", "I think:"), ("I close:", "Enough:"), ())
ANYWHERE = ReasoningFormat("anywhere", ("<think>",), ("</think>",), (), anywhere=True)
EOS = make_tokenizer().eos_ids
OBJECT = r'\{"a": 1\}'


@cache
def marks(reasoning: ReasoningFormat) -> ThinkingMarks:
    made = ThinkingMarks(vocabulary(), reasoning)
    made.prepare()
    return made


def plan(
    regex: str | None = OBJECT,
    reasoning: ReasoningFormat | None = None,
    *,
    opened: bool = False,
    budget: int | None = None,
) -> ConstraintPlan:
    return ConstraintPlan(
        vocabulary(),
        None if regex is None else grammar_of(regex),
        None if reasoning is None else marks(reasoning),
        opened,
        budget,
    )


def start(made: ConstraintPlan) -> RowConstraint:
    """Behind the prompt, whose last token is pushed as the batch does it."""
    row = RowConstraint(made, [])
    row.push(0)
    return row


def push(row: RowConstraint, tokens: Sequence[int]) -> RowConstraint:
    """Each token must be allowed where it comes, as it would have to be drawn."""
    for token in tokens:
        if row.binds:
            assert token in allowed(row), make_tokenizer().token_bytes(token)
        row.push(token)
    return row


def test_grammar_alone_allows_its_text_then_only_the_end() -> None:
    row = start(plan())
    assert allowed(row).isdisjoint(EOS)
    push(row, ids('{"a": 1}'))
    assert allowed(row) == EOS
    push(row, [min(EOS)])
    assert row.failure is None and allowed(row) == EOS


def test_row_that_is_made_again_stands_where_it_stood() -> None:
    tokens = ids('<think>\nthe room</think>\n\n{"a": 1}')
    made = plan(reasoning=TAGS)
    for count in range(1, len(tokens)):
        again = RowConstraint(made, tokens[:count])
        again.push(tokens[count - 1])
        assert allowed(again) == allowed(push(start(made), tokens[:count])), count


def test_model_may_open_thinking_or_answer_at_once() -> None:
    made = plan(reasoning=TAGS)
    first = allowed(start(made))
    assert texts(first) == {b"<think>", b"<", b'{"'}
    push(start(made), ids('{"a": 1}'))
    push(start(made), ids('<think>the {"a": 2} room</think>{"a": 1}'))


def test_while_thinking_anything_may_come_but_the_end_of_the_answer() -> None:
    row = push(start(plan(reasoning=TAGS)), ids("<think>"))
    assert allowed(row) == set(range(vocabulary().size)) - EOS


def test_answer_that_may_be_empty_may_end_in_thinking() -> None:
    row = push(start(plan("a*", reasoning=TAGS)), ids("<think>"))
    assert allowed(row) == set(range(vocabulary().size))


def test_one_or_two_line_breaks_may_follow_the_closing_mark() -> None:
    thought = ids("<think>the room</think>")
    single, double = ids("\n"), ids("\n\n")
    assert len(single) == len(double) == 1
    for breaks in (single, double, single * 2):
        row = push(start(plan(reasoning=TAGS)), [*thought, *breaks])
        assert b'{"' in texts(allowed(row))
        push(row, ids('{"a": 1}'))
    row = push(start(plan(reasoning=TAGS)), [*thought, *single])
    assert not allowed(row) & {*double}
    row.push(single[0])
    assert not allowed(row) & {*single, *double}


def test_line_break_that_the_grammar_wants_is_the_answers() -> None:
    row = push(start(plan("\nkey", reasoning=TAGS)), ids("<think>the room</think>\nkey"))
    assert allowed(row) == EOS


@pytest.mark.parametrize("opening", ["<think>", "I think:"])
def test_prompt_that_opened_thinking_begins_in_it(opening: str) -> None:
    reasoning = TAGS if opening == "<think>" else PROSE
    row = start(plan(reasoning=reasoning, opened=True))
    push(row, [*ids("the room" + reasoning.closes[0]), *ids('{"a": 1}')])
    assert allowed(row) == EOS


@pytest.mark.parametrize("opening", PROSE.opens)
@pytest.mark.parametrize("closing", PROSE.closes)
def test_marks_of_several_tokens_are_told_however_they_are_cut(opening: str, closing: str) -> None:
    for write in (ids, spell):
        row = push(start(plan(reasoning=PROSE)), write(f"{opening} the I closEnough room {closing}"))
        assert allowed(push(row, ids('{"a": 1}'))) == EOS


def test_half_an_opening_mark_must_be_completed() -> None:
    row = push(start(plan(reasoning=PROSE)), spell("I "))
    assert texts(allowed(row)) == {b"t", b"m"}


def test_text_that_fits_mark_and_grammar_stays_both_until_it_parts() -> None:
    made = plan(r"I (mutter|muse: quietly)", reasoning=PROSE)
    assert allowed(push(push(start(made), spell("I mu")), ids("tter"))) == EOS
    row = push(start(made), spell("I muse:"))
    assert spell("z")[0] in allowed(row)  # thinking: the mark wins


def test_token_that_would_go_beyond_the_closing_mark_is_kept_back() -> None:
    """There are tokens for "se:{" and ":\n", which would end the mark and begin the answer in one."""

    def kept_back(row: RowConstraint) -> set[bytes]:
        return texts(set(range(vocabulary().size)) - EOS - allowed(row))

    row = push(start(plan(reasoning=PROSE, opened=True)), spell("I clo"))
    assert kept_back(row) == {b"se:{"}
    assert kept_back(push(row, spell("se"))) == {b":\n"}
    assert kept_back(push(row, spell("x"))) == set()
    assert allowed(push(row, [*spell("I close:"), *ids('{"a": 1}')])) == EOS


def test_budget_forces_the_closing_mark() -> None:
    row = push(start(plan(reasoning=TAGS, budget=3)), ids("<think>") + spell("abc"))
    assert allowed(row) == {*ids("</think>")}
    push(row, ids('</think>\n\n{"a": 1}'))


def test_budget_without_a_grammar_binds_only_while_it_closes() -> None:
    for reasoning in (TAGS, PROSE):
        row = start(plan(None, reasoning, budget=2))
        assert not row.binds
        push(row, ids(reasoning.opens[0]) + spell("a"))
        assert not row.binds
        row.push(spell("b")[0])
        for token in ids(reasoning.closes[0]):
            assert row.binds and allowed(row) == {token}
            row.push(token)
        assert not row.active and not row.binds


def test_budget_of_nothing_closes_at_once() -> None:
    row = start(plan(None, TAGS, opened=True, budget=0))
    assert allowed(row) == {*ids("</think>")}


def test_thinking_that_ends_within_its_budget_is_left_alone() -> None:
    row = push(start(plan(None, TAGS, budget=9)), ids("<think>") + ids("ab</think>"))
    assert not row.active


@pytest.mark.parametrize(("reasoning", "later"), [(TAGS, False), (ANYWHERE, True)])
def test_thinking_in_the_middle_counts_only_where_the_format_has_it(reasoning: ReasoningFormat, later: bool) -> None:
    row = push(start(plan(None, reasoning, budget=1)), ids("the room <think>the"))
    assert row.binds is later


def test_control_tokens_are_no_text_of_a_mark() -> None:
    end = ids("<|im_start|>")
    row = start(plan(None, PROSE, opened=True, budget=50))
    row = push(row, [*spell("I clo"), *end, *spell("se:")])
    assert not row.active


def test_grammar_that_grows_too_complex_says_so() -> None:
    row = start(plan(r"(a|b)*a(a|b){2000}"))
    for token in spell("ab") * 3000:
        if row.failure:
            break
        allowed_now = row.matcher
        assert allowed_now is not None
        row.push(token)
    else:
        pytest.skip("this version of llguidance copes with it")
    assert "complex" in str(row.failure)
    assert not row.binds
