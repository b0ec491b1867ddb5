"""Scores of a prompt's own tokens, against one pass over the whole prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from engines.scheduling.pacing import FIRST_CHUNK
from engines.text import prefill
from engines.text.logprobs import TokenScore
from engines.text.row import RowEvent, RowPrompt, RowRead, RowStarted, RowToken
from tests.engines.text.helpers_rows import (
    GREEDY,
    VOCABULARY,
    continue_alone,
    make_batcher,
    make_row,
    run,
    stock_model,
    tokens_of,
)

PROMPT = [int(token) for token in np.random.default_rng(5).integers(0, VOCABULARY - 1, 23)]
ASKING = replace(GREEDY, logprobs=3)


def scores_of(events: Sequence[RowEvent], row_id: int) -> list[TokenScore | None]:
    """All of a row's, whose pieces must follow one another."""
    scores: list[TokenScore | None] = []
    for event in events:
        if isinstance(event, RowPrompt) and event.id == row_id:
            assert event.start == len(scores)
            scores += event.scores
    return scores


def check_scores(name: str, tokens: Sequence[int], got: Sequence[TokenScore | None]) -> None:
    logits = np.array(stock_model(name)(mx.array([tokens]))[0], np.float64)
    alone = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert got[0] is None and len(got) == len(tokens)
    for place, score in enumerate(got[1:]):
        assert score is not None
        assert score.logprob == pytest.approx(alone[place, tokens[place + 1]], abs=1e-4)
        best = np.argsort(-alone[place])[:3]
        assert [id for id, _ in score.top] == best.tolist()
        assert [value for _, value in score.top] == pytest.approx(alone[place, best].tolist(), abs=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mamba"])
@pytest.mark.parametrize("runs_ahead", [True, False])
@pytest.mark.parametrize("chunk", [1, 6, 100])
def test_a_prompt_is_scored_in_any_chunks_as_in_one_pass(name: str, runs_ahead: bool, chunk: int) -> None:
    model = stock_model(name)
    rows = [
        replace(make_row(1, PROMPT, 5, ASKING), scores_prompt=True),
        make_row(2, PROMPT[3:], 8),
    ]
    batcher = make_batcher(model, chunk=chunk, runs_ahead=runs_ahead)
    for row in rows:
        batcher.submit(row)
    events = run(batcher)
    check_scores(name, PROMPT, scores_of(events, 1))
    assert scores_of(events, 2) == []
    for row in rows:
        assert tokens_of(events, row.id) == continue_alone(model, row)
    first = next(i for i, event in enumerate(events) if isinstance(event, RowToken) and event.id == 1)
    assert all(not isinstance(event, RowPrompt) for event in events[first:])


@pytest.mark.parametrize("length", [1, 2, 23])
def test_a_row_of_no_tokens_ends_when_its_prompt_has_been_read(length: int) -> None:
    batcher = make_batcher(stock_model("llama"))
    batcher.submit(replace(make_row(1, PROMPT[:length], 0, ASKING), scores_prompt=True))
    events = run(batcher)
    assert events[0] == RowStarted(1) and events[-1] == RowRead(1)
    check_scores("llama", PROMPT[:length], scores_of(events, 1))
    assert tokens_of(events, 1) == [] and batcher.kv_bytes == 0


def test_a_scored_chunk_is_bounded_by_the_bytes_of_its_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "_SCORED_BYTES", 5 * 4 * VOCABULARY)
    batcher = make_batcher(stock_model("llama"), chunk=1000)
    batcher.submit(replace(make_row(1, PROMPT, 0, ASKING), scores_prompt=True))
    events = run(batcher)
    lengths = [len(event.scores) for event in events if isinstance(event, RowPrompt)]
    assert lengths == [1 + FIRST_CHUNK, 5, 5, 4]
    check_scores("llama", PROMPT, scores_of(events, 1))


def test_a_row_that_gave_way_while_it_was_read_is_scored_from_the_start_again_and_one_that_decodes_is_not() -> None:
    model = stock_model("llama")
    batcher = make_batcher(model, chunk=4)
    rows = [replace(make_row(i, PROMPT, 20, replace(ASKING, seed=i)), scores_prompt=True) for i in range(3)]
    events = list[RowEvent]()
    for row in rows[:2]:
        batcher.submit(row)
    while not tokens_of(events, 1):
        events += batcher.step()
    batcher.submit(rows[2])
    while not any(isinstance(event, RowPrompt) and event.id == 2 for event in events):
        events += batcher.step()
    batcher.admission = replace(batcher.admission, grant_bytes=256)
    events += run(batcher)
    check_scores("llama", PROMPT, scores_of(events, 1))
    pieces = [event for event in events if isinstance(event, RowPrompt) and event.id == 2]
    again = [event.start for event in pieces].index(0, 1)
    check_scores("llama", PROMPT, scores_of(pieces[again:], 2))
    for row in rows:
        assert tokens_of(events, row.id) == continue_alone(model, row)
