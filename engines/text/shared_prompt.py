"""A prompt that was read for one row and is kept for its siblings: rows of the same prompt, submitted together.

What is kept is one row's cache, beside those of the rows that run. It counts in the KV grant, goes as soon as anything else
needs its room, and a sibling that comes then reads the prompt again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any, cast

import mlx.core as mx

from engines.scheduling.admission import KvCost
from engines.text.logprobs import PendingScores
from engines.text.prefill import Prefill, prompt_scores
from engines.text.row import Row, RowPrompt

__all__ = ["PromptShelf", "SharedPrompt"]

# Siblings are prepared one after the other, on other threads: where a prompt is read faster than that, the next is expected
# for so long.
_EXPECTED_S = 0.25


class SharedPrompt:
    """One prompt's cache, but for its last token, and its tokens' scores where they were asked for."""

    def __init__(self, prefill: Prefill, now: float) -> None:
        row = prefill.row
        self.siblings = row.siblings
        self.tokens = row.tokens
        self._scores: list[PendingScores] = prefill.scores
        self._scored, self._alternatives = row.scores_prompt, row.sampling.logprobs
        self._cache = prefill.cache
        self.until = now + _EXPECTED_S

    @property
    def cached_tokens(self) -> int:
        """What a sibling need not read."""
        return len(self.tokens) - 1

    @property
    def held_bytes(self) -> int:
        return cast(int, sum(cache.nbytes for cache in self._cache))

    def serves(self, row: Row) -> bool:
        """Whether this row's prompt is this one."""
        if row.siblings is None or row.siblings != self.siblings or row.tokens != self.tokens:
            return False
        return not row.scores_prompt or (self._scored and row.sampling.logprobs == self._alternatives)

    def scores_for(self, row: Row) -> Iterator[RowPrompt]:
        """What a row that asks hears of the prompt, chunk by chunk."""
        first = 0
        for chunk in self._scores or (None,):
            event = prompt_scores(row.id, first, chunk)
            yield event
            first = event.start + len(event.scores) - 1

    def copies(self, rows: int) -> list[Any]:
        """A cache of so many rows, in memory of its own."""
        return _repeated(deepcopy(self._cache), rows) if rows else []

    def given_up(self, rows: int) -> list[Any]:
        """As ``copies``, but nothing is kept here. The last call."""
        cache, self._cache = self._cache, []
        return cache if rows <= 1 else _repeated(cache, rows)


def _repeated(caches: list[Any], rows: int) -> list[Any]:
    for cache in caches:
        cache.filter([0] * rows)
        mx.eval(cache.state)
    return caches


class PromptShelf:
    """The place for one shared prompt. Where it lacks room, it is the first to go."""

    def __init__(self) -> None:
        self.prompt: SharedPrompt | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes it holds now."""
        return 0 if self.prompt is None else self.prompt.held_bytes

    def projected_bytes(self, cost: KvCost) -> int:
        """Bytes it counts for in the grant."""
        return 0 if self.prompt is None else cost.row_bytes(len(self.prompt.tokens))

    def serves(self, row: Row) -> bool:
        return self.prompt is not None and self.prompt.serves(row)

    def clear(self) -> None:
        self.prompt = None

    def tidy(self, waiting: Iterable[Row], running: Iterable[Row], now: float) -> None:
        """Lets it go when no sibling waits, and none runs or more are not expected any longer."""
        prompt = self.prompt
        if prompt is None or any(prompt.serves(row) for row in waiting):
            return
        if now >= prompt.until or not any(row.siblings == prompt.siblings for row in running):
            self.prompt = None
