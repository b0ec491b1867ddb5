"""What is done to the logits of rows that ask for it, before a token is drawn: biases and penalties.

For each token id ``t`` of a row's vocabulary, in this order:

1. ``logit_bias``: ``l[t] += bias[t]``.
2. ``repetition_penalty`` ``p``, of each token that stands in the prompt or the answer: ``l[t] / p`` where ``l[t]`` is positive,
   else ``l[t] * p`` (Keskar et al., 2019, "CTRL").
3. ``frequency_penalty`` and ``presence_penalty``, of each token that stands in the answer: ``l[t] -= n[t] * frequency +
   presence``, with ``n[t]`` how often it does (OpenAI's formula).

Only ids that a row's table names are touched, so a step costs what the distinct tokens of a row cost, not its vocabulary. A
table is a function of the row's prompt and answer, and is made anew when the row starts again.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from engines.text.sampling import SamplingParameters

__all__ = ["LogitAdjustments", "RowAdjustment"]


class RowAdjustment:
    """One row's table: the ids whose logits change, and what is known of each.

    Args:
        parameters: of the row.
        tokens: what stands in the row already.
        prompt_tokens: how many tokens the prompt has; what follows them is the answer.
    """

    def __init__(self, parameters: SamplingParameters, tokens: Sequence[int], prompt_tokens: int) -> None:
        self._parameters = parameters
        self._prompt_tokens = prompt_tokens
        self._length = 0
        self._places: dict[int, int] = {}
        self._ids, self._biases = array("I"), array("f")
        self._seen, self._counts = array("f"), array("f")  # 1.0 in prompt or answer; how often in the answer
        for token, bias in parameters.logit_bias:
            self._biases[self._place(token)] = bias
        self._counts_prompt = parameters.repetition_penalty != 1.0
        self._counts_answer = (
            self._counts_prompt or parameters.frequency_penalty != 0.0 or parameters.presence_penalty != 0.0
        )
        if self._counts_prompt:
            for token in dict.fromkeys(tokens[:prompt_tokens]):
                self._seen[self._place(token)] = 1.0
        if self._counts_answer:
            for token, count in Counter(tokens[prompt_tokens:]).items():
                place = self._place(token)
                self._seen[place], self._counts[place] = 1.0, float(count)
        self._length = len(tokens)

    def _place(self, token: int) -> int:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._ids)
            self._ids.append(token)
            for column in (self._biases, self._seen, self._counts):
                column.append(0.0)
        return place

    def push(self, token: int) -> None:
        """The next token of the row."""
        answered = self._length >= self._prompt_tokens
        self._length += 1
        if self._counts_answer if answered else self._counts_prompt:
            place = self._place(token)
            self._seen[place] = 1.0
            self._counts[place] += answered

    def columns(self) -> tuple[NDArray[np.uint32], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Of each id in the table: the id, what is added to its logit, by what that is divided if positive and multiplied if
        not, and what is subtracted from that."""
        counts, seen = np.array(self._counts, np.float32), np.array(self._seen, np.float32)
        penalty = counts * self._parameters.frequency_penalty + (counts > 0) * self._parameters.presence_penalty
        factor = np.where(seen > 0, self._parameters.repetition_penalty, 1.0)
        return (
            np.array(self._ids, np.uint32),
            np.array(self._biases, np.float32),
            factor.astype(np.float32),
            penalty.astype(np.float32),
        )


class LogitAdjustments:
    """The adjustments of a batch; made anew when a row joins or leaves.

    Args:
        rows: each row's table in the batch's order, None for one that asks for nothing.
    """

    def __init__(self, rows: Sequence[RowAdjustment | None]) -> None:
        self._rows = [(place, row) for place, row in enumerate(rows) if row is not None]

    @property
    def active(self) -> bool:
        """False where no row asks, and nothing need be done."""
        return bool(self._rows)

    def push(self, tokens: Sequence[int]) -> None:
        """The next token of each row of the batch, which the coming logits follow."""
        for place, row in self._rows:
            row.push(tokens[place])

    def apply(self, logits: mx.array) -> mx.array:
        """(rows, vocabulary) → the same in float32, adjusted; ``logits`` itself stays as it is."""
        columns = [row.columns() for _, row in self._rows]
        rows = mx.array(np.repeat([place for place, _ in self._rows], [len(ids) for ids, *_ in columns]))
        ids, biases, factors, penalties = (mx.array(np.concatenate(column)) for column in zip(*columns, strict=True))
        adjusted = logits.astype(mx.float32)
        if ids.size == 0:
            return adjusted
        values = adjusted[rows, ids] + biases
        adjusted[rows, ids] = mx.where(values > 0, values / factors, values * factors) - penalties
        return adjusted
