"""Rows that are bound to a grammar, in a batch: each must get the tokens it would get alone, by an oracle without llguidance."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import regex  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

from engines.text.constraints.compiler import CompiledGrammar, GrammarCompiler
from engines.text.constraints.marks import ThinkingMarks
from engines.text.constraints.masks import ConstraintStage
from engines.text.constraints.row_constraint import ConstraintPlan, RowConstraint
from engines.text.constraints.source import source_of, written
from engines.text.constraints.vocabulary import GrammarVocabulary
from engines.text.reasoning import ReasoningFormat
from engines.text.row import Row, RowEvent, RowFailed, RowStarted, RowToken
from engines.text.sampling import SamplingParameters
from engines.wire import Grammar
from tests.engines.text.helpers_rows import (
    EOS,
    GREEDY,
    VOCABULARY,
    adjusted,
    continue_alone,
    draw,
    make_batcher,
    make_row,
    run,
    stock_model,
    tokens_of,
)

PATTERNS = (r"(room|key) [0-9]{1,9}[a-z]*", r"[a-z]{5}", r"\{(\"[a-z]+\": [0-9]+,? ?)+\}", r"(yes|no)\n?", r"[^!]*!")


class Characters:
    """One printable character a token, a line break, and EOS."""

    vocab_size = VOCABULARY
    special_ids = frozenset({EOS})

    def token_bytes(self, id: int) -> bytes:
        return b"<eos>" if id == EOS else b"\n" if id == EOS - 1 else bytes([32 + id])

    def token_text(self, id: int) -> str:
        return self.token_bytes(id).decode()

    def encode(
        self, text: str, *, add_bos: bool | None = None, parse_special: bool = False, at_start: bool = True
    ) -> list[int]:
        return [EOS - 1 if character == "\n" else ord(character) - 32 for character in text]


CHARACTERS = Characters()
GRAMMARS = GrammarVocabulary(CHARACTERS, {EOS})
COMPILER = GrammarCompiler(GRAMMARS)


def text_of(tokens: list[int]) -> str:
    return b"".join(CHARACTERS.token_bytes(token) for token in tokens if token != EOS).decode()


@cache
def grammar_of(pattern: str) -> CompiledGrammar:
    return COMPILER.compile(written(source_of(Grammar(kind="regex", source=pattern))), "guided_regex")


def bound_row(
    row_id: int, pattern: str, sampling: SamplingParameters = GREEDY, max_tokens: int = 20, length: int = 4
) -> Row:
    prompt = np.random.default_rng(row_id).integers(0, VOCABULARY - 1, length)
    row = make_row(row_id, [int(token) for token in prompt], max_tokens, sampling)
    return replace(row, constraint=ConstraintPlan(GRAMMARS, grammar_of(pattern)))


def seeded(seed: int) -> SamplingParameters:
    return SamplingParameters(seed=seed, temperature=1.0, top_p=0.95, top_k=40)


def continue_bound(model: Any, row: Row, pattern: str) -> list[int]:
    """One row alone, every token of the vocabulary tried against the pattern."""
    state = make_prompt_cache(model)
    inputs, tokens = list(row.tokens), list[int]()
    while len(tokens) < row.max_tokens:
        logits = np.array(model(mx.array([inputs]), cache=state)[0, -1].astype(mx.float32), np.float64)
        logits = adjusted(logits, row.sampling, row.tokens, tokens)
        text = text_of(tokens)
        may = [
            bool(regex.fullmatch(pattern, text))
            if id == EOS
            else bool(regex.fullmatch(pattern, text + CHARACTERS.token_bytes(id).decode(), partial=True))
            for id in range(VOCABULARY)
        ]
        token = draw(np.where(may, logits, -np.inf), row.sampling, len(row.tokens) + len(tokens))
        tokens.append(token)
        if token == EOS:
            break
        inputs = [token]
    return tokens


@pytest.mark.parametrize("runs_ahead", [True, False])
@pytest.mark.parametrize("width", [1, 8])
def test_bound_rows_get_in_any_batch_what_they_get_alone(runs_ahead: bool, width: int) -> None:
    model = stock_model("llama")
    batcher = make_batcher(model, width=width, runs_ahead=runs_ahead)
    patterns = (*PATTERNS, *PATTERNS[:3])
    penalised = replace(seeded(5), frequency_penalty=0.6, repetition_penalty=1.2, logit_bias=((1, 90.0),))
    samplings = (GREEDY, seeded(1), seeded(2), penalised, seeded(3), seeded(4), penalised, GREEDY)
    rows = [
        bound_row(i, pattern, sampling) for i, (pattern, sampling) in enumerate(zip(patterns, samplings, strict=True))
    ]
    free = make_row(8, [5, 6, 7], 20, seeded(9))
    for row in (*rows[:4], free, *rows[4:]):
        batcher.submit(row)
    events = run(batcher)
    for row, pattern in zip(rows, patterns, strict=True):
        tokens = tokens_of(events, row.id)
        assert tokens == continue_bound(model, row, pattern), pattern
        finish = [event.finish for event in events if isinstance(event, RowToken) and event.id == row.id][-1]
        if finish == "stop":
            assert regex.fullmatch(pattern, text_of(tokens))
        else:
            assert finish == "length" and len(tokens) == row.max_tokens
    assert tokens_of(events, 8) == continue_alone(model, free)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 12),  # the tick of its arrival
            st.one_of(st.none(), st.sampled_from(PATTERNS)),
            st.integers(1, 16),  # max_tokens
            st.integers(0, 99),  # seed
        ),
        min_size=2,
        max_size=7,
    ),
    grants=st.dictionaries(st.integers(0, 25), st.integers(1, 5), max_size=3),  # in rows
    width=st.integers(1, 5),
    runs_ahead=st.booleans(),
)
def test_any_schedule_of_joins_leaves_and_preemptions_keeps_every_bound_row(
    rows: list[tuple[int, str | None, int, int]], grants: dict[int, int], width: int, runs_ahead: bool
) -> None:
    model = stock_model("llama")
    batcher = make_batcher(model, width=width, runs_ahead=runs_ahead)
    wanted = [
        bound_row(id, pattern, seeded(seed), most) if pattern else make_row(id, [id, 5, 6], most, seeded(seed))
        for id, (_, pattern, most, seed) in enumerate(rows)
    ]
    events = list[RowEvent]()
    for tick in range(26):
        for row, (at, *_) in zip(wanted, rows, strict=True):
            if at == tick:
                batcher.submit(row)
        if tick in grants:
            batcher.admission = replace(batcher.admission, grant_bytes=grants[tick] * 256)
        events += batcher.step()
    events += run(batcher)
    for row, (_, pattern, *_) in zip(wanted, rows, strict=True):
        alone = continue_bound(model, row, pattern) if pattern else continue_alone(model, row)
        assert tokens_of(events, row.id) == alone


@pytest.mark.parametrize("runs_ahead", [True, False])
def test_preempted_row_resumes_in_its_grammar(runs_ahead: bool) -> None:
    model = stock_model("llama")
    pattern = r"[a-z]{20}[0-9]{10}!"
    rows = [
        replace(bound_row(i, pattern, seeded(i), 40, length=240), least_tokens=241, expected_tokens=250)
        for i in range(2)
    ]
    batcher = make_batcher(model, chunk=300, grant=2 * 256, runs_ahead=runs_ahead)
    for row in rows:
        batcher.submit(row)
    events = run(batcher)
    started = [event.id for event in events if isinstance(event, RowStarted)]
    assert started[:2] == [0, 1] and len(started) == 3
    for row in rows:
        assert tokens_of(events, row.id) == continue_bound(model, row, pattern)


def test_siblings_stand_each_in_its_own_place() -> None:
    model = stock_model("llama")
    first = bound_row(0, PATTERNS[0])
    rows = [replace(first, id=i, sampling=seeded(i), siblings=7) for i in range(4)]
    batcher = make_batcher(model)
    for row in rows:
        batcher.submit(row)
    events = run(batcher)
    answers = [tokens_of(events, row.id) for row in rows]
    assert answers == [continue_bound(model, row, PATTERNS[0]) for row in rows]
    assert len({tuple(answer) for answer in answers}) > 1


@pytest.mark.parametrize("runs_ahead", [True, False])
def test_scores_are_the_model_s_own_and_not_those_of_what_was_left(runs_ahead: bool) -> None:
    model = stock_model("llama")
    row = bound_row(1, "[a-z]{3}", replace(GREEDY, logprobs=2))
    batcher = make_batcher(model, runs_ahead=runs_ahead)
    batcher.submit(row)
    context = list(row.tokens)
    for event in [event for event in run(batcher) if isinstance(event, RowToken)]:
        logits = np.array(model(mx.array([context]))[0, -1], np.float64)
        alone = logits - np.log(np.exp(logits).sum())
        assert event.score is not None
        assert event.score.logprob == pytest.approx(alone[event.token], abs=1e-4)
        assert [id for id, _ in event.score.top] == np.argsort(-alone)[:2].tolist()
        context.append(event.token)


@pytest.mark.parametrize("runs_ahead", [True, False])
def test_thinking_is_free_until_its_budget_is_spent_and_then_the_grammar_holds(runs_ahead: bool) -> None:
    model = stock_model("llama")
    marks = ThinkingMarks(GRAMMARS, ReasoningFormat("tags", ("<t>",), ("</t>",), ()))
    marks.prepare()
    plan = ConstraintPlan(GRAMMARS, grammar_of("[0-9]{4}"), marks, opened=True, budget=6)
    rows = [replace(bound_row(i, "a", seeded(i), 30), constraint=plan) for i in range(3)]
    batcher = make_batcher(model, runs_ahead=runs_ahead)
    for row in rows:
        batcher.submit(row)
    events = run(batcher)
    for row in rows:
        tokens = tokens_of(events, row.id)
        assert tokens[-1] == EOS
        thought, answer = text_of(tokens).split("</t>")
        assert len(thought) == 6
        assert regex.fullmatch(r"\n{0,2}[0-9]{4}", answer)
        assert tokens[:6] == _without_end(model, row)[:6]


def _without_end(model: Any, row: Row) -> list[int]:
    """The row alone and free, but for the end of the answer."""
    biased = replace(row.sampling, logit_bias=((EOS, -1e9),))
    return continue_alone(model, replace(row, sampling=biased, max_tokens=6))


@pytest.mark.parametrize("runs_ahead", [True, False])
@pytest.mark.parametrize("drawn_before", [0, 3])
def test_row_whose_grammar_fails_ends_alone(
    runs_ahead: bool, drawn_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stock_model("llama")
    rows = [bound_row(i, "[a-z]{9}", seeded(i)) for i in range(3)]
    pushed = RowConstraint.push
    counts = dict[RowConstraint, int]()
    bad = rows[1].constraint
    assert bad is not None
    rows[1] = replace(rows[1], constraint=replace(bad, budget=7))  # tells it apart

    def push(self: RowConstraint, token: int) -> None:
        pushed(self, token)
        counts[self] = counts.get(self, 0) + 1
        if self._plan.budget == 7 and counts[self] > drawn_before:
            self.failure = "it became too complex"

    monkeypatch.setattr(RowConstraint, "push", push)
    batcher = make_batcher(model, runs_ahead=runs_ahead)
    for row in rows:
        batcher.submit(row)
    events = run(batcher)
    (failed,) = [event for event in events if isinstance(event, RowFailed)]
    assert failed == RowFailed(1, "it became too complex")
    assert not any(event.id == 1 for event in events[events.index(failed) + 1 :])
    told = tokens_of(events, 1)
    assert told == continue_bound(model, rows[1], "[a-z]{9}")[: len(told)]
    assert len(told) <= drawn_before
    for row in (rows[0], rows[2]):
        assert tokens_of(events, row.id) == continue_bound(model, row, "[a-z]{9}")


@pytest.mark.parametrize("runs_ahead", [True, False])
def test_rows_that_are_free_never_wait_for_a_mask(runs_ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def apply(self: ConstraintStage, logits: mx.array) -> mx.array:
        raise AssertionError("asked for a mask")

    monkeypatch.setattr(ConstraintStage, "apply", apply)
    batcher = make_batcher(stock_model("llama"), runs_ahead=runs_ahead)
    row = make_row(1, [1, 2, 3])
    batcher.submit(row)
    assert tokens_of(run(batcher), 1) == continue_alone(stock_model("llama"), row)
