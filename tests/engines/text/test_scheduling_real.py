"""Real models: rows that join, leave, give way, lose their caches and decode in cohorts say what each says alone.

Greedy rows may part at a tie, where batches of other shapes round otherwise: then both tokens were all but equally probable.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engines.text.engine import GgufTextEngine
from engines.text.loader import build
from engines.wire import (
    Event,
    Finished,
    LoadModel,
    ModelSpec,
    Sampling,
    TextDelta,
    TextPrompt,
    TextRequest,
    TokenLogprob,
)
from tests.engines.text.helpers_faulty_model import FaultyModel

pytestmark = pytest.mark.slow

TIE = 0.05  # of log-probabilities
LINE = "The inn stands at the bend of the river, and the keeper knows every guest by name. "
PROMPTS = (("Once upon a time", 16), (LINE * 14, 6), ("The capital of France is", 10), (LINE, 12))


def loaded(path: Path, grant_tokens: int) -> GgufTextEngine:
    spec = ModelSpec(id="m", task="text", format="gguf", paths=(str(path),), context=1024)
    engine = build(LoadModel(spec=spec), lambda fraction: None)
    engine.set_grant(grant_tokens * _row_bytes(engine) // 1024)
    return engine


def _row_bytes(engine: GgufTextEngine) -> int:
    return engine._batcher.admission.cost.row_bytes(1024)


def submit(engine: GgufTextEngine, id: int, text: str, tokens: int, logprobs: int | None = None) -> None:
    request = TextRequest(
        prompt=TextPrompt(text=text), sampling=Sampling(temperature=0.0), max_tokens=tokens, logprobs=logprobs
    )
    engine.submit(id, engine.prepare(request))


def said(events: list[Event], id: int) -> list[int]:
    return [token for e in events if isinstance(e, TextDelta) and e.request_id == id for token in e.tokens]


def finish(engine: GgufTextEngine, events: list[Event]) -> list[Event]:
    while engine.busy:
        events += engine.step()
    return events


def alone(engine: GgufTextEngine, prompts: Sequence[tuple[str, int]]) -> list[list[TokenLogprob]]:
    """What each says alone, with how probable it and the next likeliest were."""
    answers = []
    for id, (text, tokens) in enumerate(prompts):
        submit(engine, id, text, tokens, logprobs=2)
        events = finish(engine, [])
        answers.append([entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs])
    return answers


def agrees(got: list[int], wanted: list[TokenLogprob], *, whole: bool = True) -> None:
    """The same tokens, up to a tie."""
    for ours, theirs in zip(got, wanted, strict=False):
        if ours != theirs.token:
            top = {entry.token: entry.logprob for entry in theirs.top}
            assert ours in top and max(top.values()) - top[ours] < TIE, (ours, theirs)
            return
    assert len(got) == len(wanted) if whole else len(got) <= len(wanted)


def test_rows_in_cohorts_of_a_real_model_say_what_they_say_alone(smollm2_path: Path) -> None:
    engine = loaded(smollm2_path, 8 * 1024)
    wanted = alone(engine, PROMPTS)
    batcher: Any = engine._batcher
    batcher.reception._pass_bytes = 1  # any padding makes a cohort
    events = list[Event]()
    cohorts = 0
    for id, (text, tokens) in enumerate(PROMPTS):
        submit(engine, id, text, tokens)
        while len(said(events, id)) < 2:
            events += engine.step()
            cohorts = max(cohorts, len(batcher.running.cohorts.batches))
    engine.cancel(2)
    finish(engine, events)
    assert cohorts == 2
    for id, answer in enumerate(wanted):
        agrees(said(events, id), answer, whole=id != 2)
    assert batcher.watch.bytes_per_row_token > 0 and batcher.admission.cost == engine._kv_cost
    engine.close()


def test_rows_of_a_windowed_model_that_lose_their_caches_say_what_they_say_alone(gemma_path: Path) -> None:
    prompts = (("Once upon a time", 12), (LINE, 8), (LINE * 26, 4))  # the last beyond the window of 512 tokens
    engine = loaded(gemma_path, 8 * 1024)
    wanted = alone(engine, prompts)
    batcher: Any = engine._batcher
    model = batcher.running.cohorts._model = FaultyModel(batcher._model, [5], late=True)
    events = list[Event]()
    for id, (text, tokens) in enumerate(prompts):
        submit(engine, id, text, tokens)
    while len(said(events, 1)) < 3:
        events += engine.step()
    engine.set_grant(_row_bytes(engine) * 5 // 4)  # not for two beside a long one
    finish(engine, events)
    assert model.faults == 1 and batcher.watch.preemptions > 0 and batcher.watch.failures == 0
    for id, answer in enumerate(wanted):
        agrees(said(events, id), answer)
    ends = [event for event in events if isinstance(event, Finished)]
    assert sorted(end.request_id for end in ends) == [0, 1, 2]
    assert engine.memory().kv == 0
    engine.close()
