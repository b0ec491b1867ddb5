"""mlx-lm's batch of rows that decode, with our own step. The one place that touches its private attributes.

``tests/engines/text/test_contract.py`` names each of them and the version they were read in.
"""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
from mlx_lm.generate import GenerationBatch

from engines.text.cache_room import extended, keep_rows
from engines.text.constraints.row_constraint import RowConstraint
from engines.text.draws import DrawStages, RowDraw

__all__ = ["DecodingBatch"]


class DecodingBatch(GenerationBatch):
    """mlx-lm's batch with our own step.

    ``samplers`` carries each row's :class:`RowDraw`, so that joins and leaves keep them in order, and a response's ``logprobs``
    is a :class:`PendingScore` of a row that asked, else None. ``_next_tokens`` are the tokens last drawn, ``tokens`` what the
    cache holds.

    With ``runs_ahead`` the next token is dispatched before the last is reported, as in mlx-lm, so that the device does not
    wait for us. Kernels that compute in the call would only delay each token by the next; without it a token is reported as
    soon as it is drawn.
    """

    def __init__(self, *fields: Any, runs_ahead: bool) -> None:
        self.runs_ahead = runs_ahead
        self._stages: DrawStages | None = None
        self._first_reported = False
        super().__init__(*fields)  # calls _step to draw the first token

    def settle(self) -> None:
        """Waits for the tokens last drawn."""
        mx.eval(self._next_tokens)

    def _step(self) -> tuple[list[int], list[mx.array]]:
        """Answers the next token of every row, and its score (None for a row that did not ask)."""
        if self._stages is None:
            self._draw()
            return [], []
        if self.runs_ahead:
            reported = self._next_tokens, self._next_logprobs
            # When every row ends with the token it has, none is to be drawn.
            if any(n + 1 < most for n, most in zip(self._num_tokens, self.max_tokens, strict=True)):
                self._draw()
        else:
            if self._first_reported:
                self._draw()
            self._first_reported = True
            reported = self._next_tokens, self._next_logprobs
        return cast(list[int], reported[0].tolist()), reported[1]

    def _draw(self) -> None:
        """Dispatches the forward pass over the tokens last drawn, and the draw of the next."""
        rows = cast(list[RowDraw], self.samplers)
        if self._stages is None or self._stages.rows != rows:
            self._stages = DrawStages(rows)
        stages = self._stages
        inputs = self._next_tokens
        logits = self.model(inputs[:, None], cache=self.prompt_cache)[:, -1, :]
        adjusted, known = logits, None
        if stages.follow_tokens:
            mx.async_eval(logits)  # type: ignore[no-untyped-call]  # beside it, the inputs are waited for, tables and masks made
            known = cast(list[int], inputs.tolist())
            adjusted = stages.change(logits, known)
        # Behind what the cache held before this pass stands its input, and behind that the drawn token.
        self._next_tokens = stages.sampler.sample(adjusted, [len(tokens) + 1 for tokens in self.tokens])
        scores, arrays = stages.logprobs.read(logits, self._next_tokens)
        self._next_logprobs = cast(list[mx.array], scores)
        mx.async_eval(self._next_tokens, arrays)  # type: ignore[no-untyped-call]
        for tokens, token in zip(self.tokens, known or cast(list[int], inputs.tolist()), strict=True):
            tokens.append(token)

    def extend(self, batch: GenerationBatch) -> None:
        """Takes the rows of another batch, which is of no use afterwards."""
        super().extend(batch)  # type: ignore[no-untyped-call]
        batch.prompt_cache = []
        extended(self.prompt_cache)

    def filter(self, keep: list[int]) -> None:
        """Keeps these rows; the room of the others is free when this returns."""
        caches, self.prompt_cache = self.prompt_cache, []
        super().filter(keep)
        if keep:
            keep_rows(caches, keep)
            self.prompt_cache = caches

    def constraints(self) -> dict[int, RowConstraint]:
        """By row, those that there are."""
        rows = zip(self.uids, cast(list[RowDraw], self.samplers), strict=True)
        return {uid: row.constraint for uid, row in rows if row.constraint is not None}

    def extract_cache(self, idx: int) -> list[Any]:
        """Nothing keeps the cache of a row that has finished."""
        return []
