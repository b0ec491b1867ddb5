"""One completion as the batcher sees it, and what the batcher says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from engines.text.sampling import SamplingParameters

__all__ = ["Row", "RowEvent", "RowRefused", "RowStarted", "RowStopped", "RowToken"]


@dataclass(frozen=True)
class Row:
    """One completion, as the batcher sees it.

    Attributes:
        id: names the row in events and cancels.
        tokens: the prompt's ids, at least one; after a preemption the answer so far follows.
        max_tokens: tokens to draw at most, at least 1.
        least_tokens: the length, prompt and answer, without which the row is not worth starting.
        expected_tokens: the length for which KV cache is projected, where the grant could hold it; at least ``least_tokens``.
        sampling: how it is drawn.
        resumed: it has been preempted.
    """

    id: int
    tokens: tuple[int, ...]
    max_tokens: int
    least_tokens: int
    expected_tokens: int
    sampling: SamplingParameters
    resumed: bool = False


@dataclass(frozen=True)
class RowStarted:
    """The row's prefill begins; again after a preemption."""

    id: int


@dataclass(frozen=True)
class RowToken:
    """The row's next token. With ``finish`` set it is the last: an end-of-sequence token ("stop") or ``max_tokens``."""

    id: int
    token: int
    finish: Literal["stop", "length"] | None
    logprobs: mx.array | None  # (vocabulary,) float32, where the row asked


@dataclass(frozen=True)
class RowStopped:
    """The row ended without another token: even alone it has outgrown the KV grant."""

    id: int


@dataclass(frozen=True)
class RowRefused:
    """The row was not started: even alone it needs more KV cache than the grant holds. Both in tokens."""

    id: int
    needed_tokens: int
    granted_tokens: int


RowEvent = RowStarted | RowToken | RowStopped | RowRefused
