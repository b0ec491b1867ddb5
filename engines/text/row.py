"""One completion as the batcher sees it, and what the batcher says of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from engines.scheduling.growth import OPEN_ANSWER, RowLengths
from engines.scheduling.waiting import Priority
from engines.text.constraints.row_constraint import ConstraintPlan
from engines.text.logprobs import TokenScore
from engines.text.sampling import SamplingParameters

__all__ = [
    "Row",
    "RowEvent",
    "RowFailed",
    "RowOutOfMemory",
    "RowPrompt",
    "RowRead",
    "RowRefused",
    "RowStarted",
    "RowStopped",
    "RowToken",
]


@dataclass(frozen=True)
class Row:
    """One completion, as the batcher sees it.

    Attributes:
        id: names the row in events and cancels.
        tokens: the prompt's ids, at least one; after a preemption the answer so far follows.
        max_tokens: tokens to draw at most; 0 only where the prompt's tokens are scored.
        least_tokens: the length, prompt and answer, without which the row is not worth starting.
        expected_tokens: the length for which KV cache is projected, where the grant could hold it; at least ``least_tokens``.
        sampling: how it is drawn.
        constraint: what its answer is bound to; None where it is free.
        siblings: a number that rows of the same prompt share, and no others: it may be read once for several of them.
        scores_prompt: the prompt's own tokens are scored, with ``sampling.logprobs`` alternatives.
        answered: how many of ``tokens``, at their end, are of the answer.
        most_tokens: the longest that any grant could ever hold, once that is known.
        resumed: it has been preempted.
        priority: its class among the rows that wait.
        arrived_at: when it was submitted, in seconds of the batcher's clock.
        said_at: when its last token was reported; None: there was none yet.
        waits_until: it outgrew the grant alone; without a larger one by then it ends where it is.
    """

    id: int
    tokens: tuple[int, ...]
    max_tokens: int
    least_tokens: int
    expected_tokens: int
    sampling: SamplingParameters
    constraint: ConstraintPlan | None = None
    siblings: int | None = None
    scores_prompt: bool = False
    answered: int = 0
    most_tokens: int | None = None
    resumed: bool = False
    waits_until: float | None = None
    priority: Priority = "normal"
    arrived_at: float = 0.0
    said_at: float | None = None

    @property
    def lengths(self) -> RowLengths:
        return RowLengths(self.least_tokens, self.expected_tokens, len(self.tokens) + self.max_tokens, self.most_tokens)

    def resuming(self, tokens: tuple[int, ...], waits_until: float | None) -> Row:
        """The row with what it has drawn so far as its prompt. ``waits_until`` is set where it was alone.

        It is projected to grow as an answer without ``max_tokens``, or it would soon have to give way again.
        """
        length = len(tokens) + 1
        end = len(self.tokens) + self.max_tokens
        return replace(
            self,
            tokens=tokens,
            max_tokens=end - len(tokens),
            least_tokens=max(self.least_tokens, length),
            expected_tokens=max(self.expected_tokens, length, min(end, len(tokens) + OPEN_ANSWER)),
            answered=self.answered + len(tokens) - len(self.tokens),
            scores_prompt=False,
            resumed=True,
            waits_until=waits_until,
        )


@dataclass(frozen=True)
class RowStarted:
    """The row's prefill begins; again after a preemption."""

    id: int
    cached_tokens: int = 0  # of its prompt, that another row has read for it


@dataclass(frozen=True)
class RowPrompt:
    """Scores of the prompt's tokens from ``start`` on, where the row asked; from 0 on again after a preemption.

    The first token follows nothing, and has none.
    """

    id: int
    start: int
    scores: tuple[TokenScore | None, ...]


@dataclass(frozen=True)
class RowRead:
    """The row's prompt has been read, and that was all it asked for."""

    id: int


@dataclass(frozen=True)
class RowToken:
    """The row's next token. With ``finish`` set it is the last: an end-of-sequence token ("stop") or ``max_tokens``."""

    id: int
    token: int
    finish: Literal["stop", "length"] | None
    score: TokenScore | None = None  # where the row asked


@dataclass(frozen=True)
class RowStopped:
    """The row ended without another token: even alone it has outgrown the KV grant, and got no larger one in time."""

    id: int


@dataclass(frozen=True)
class RowFailed:
    """The row cannot go on, others can: its grammar took more work than is allowed."""

    id: int
    reason: str


@dataclass(frozen=True)
class RowOutOfMemory:
    """The row was ended to save the others: memory ran out over it again, or nothing else was left to give way."""

    id: int
    held_tokens: int


@dataclass(frozen=True)
class RowRefused:
    """The row was not started: even alone it needs more KV cache than any grant could hold. Both in tokens."""

    id: int
    needed_tokens: int
    granted_tokens: int


RowEvent = RowStarted | RowPrompt | RowRead | RowToken | RowStopped | RowFailed | RowOutOfMemory | RowRefused
