"""Which rows may hold KV cache, within the bytes granted.

A batch holds rows × its longest row, so that is what is projected, with the length rounded up to what the caches allocate. Beside
it, where rows have company: the copy of one layer, which is there twice while rows join or its arrays grow; what a step takes
while it runs; and a reserve. A row alone may fill the grant, which is what was granted for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

__all__ = ["KV_STEP", "Decision", "KvAdmission", "KvCost"]

KV_STEP = 256  # tokens; mlx-lm's caches grow in such steps


class Decision(Enum):
    """What becomes of the row at the head of the queue."""

    ADMIT = "admit"  # its prefill may begin
    WAIT = "wait"  # it fits alone: when rows have left, or the grant has grown
    GROW = "grow"  # it would not fit alone: only a larger grant helps


@dataclass(frozen=True)
class KvCost:
    """KV bytes of one token of one row: of the layers that keep every token, and of those that keep a sliding window; and what
    the layers with a recurrent state keep of a row, whatever its length.

    ``layer_bytes_per_token`` is of the layers that are copied at once; 0: no copy is projected.
    """

    bytes_per_token: int
    window_bytes_per_token: int = 0
    window_tokens: int = 0  # the widest window; 0 where no layer has one
    state_bytes: int = 0  # a row
    layer_bytes_per_token: int = 0

    def row_bytes(self, tokens: int) -> int:
        """Bytes of one row's caches of this length, as allocated."""
        return self._grown_bytes(tokens) + (self.state_bytes if tokens > 0 else 0)

    def batch_bytes(self, rows: Sequence[int]) -> int:
        """Bytes of a batch of rows of these lengths, in tokens."""
        return len(rows) * self.row_bytes(max(rows, default=0))

    def copy_bytes(self, rows: Sequence[int]) -> int:
        """Bytes of the largest layer of such a batch."""
        allocated = -(-max(rows, default=0) // KV_STEP) * KV_STEP
        if self.bytes_per_token == 0:
            allocated = min(allocated, self.window_tokens)
        return len(rows) * allocated * self.layer_bytes_per_token

    def attended(self, rows: Sequence[int]) -> int:
        """Tokens that a step of such a batch attends over, as many as if all layers with a cache did so alike: those with a
        sliding window see no more than it."""
        longest = max(rows, default=0)
        read = longest * self.bytes_per_token + min(longest, self.window_tokens) * self.window_bytes_per_token
        return len(rows) * read // (self.bytes_per_token + self.window_bytes_per_token or 1)

    def longest_row(self, total_bytes: int) -> int | None:
        """Tokens of the longest row within these bytes, a multiple of the step; None: any length."""
        total_bytes -= self.state_bytes
        if total_bytes < 0:
            return 0
        windowed = self.window_bytes_per_token * self.window_tokens
        if total_bytes < self._grown_bytes(self.window_tokens):
            steps = total_bytes // (KV_STEP * (self.bytes_per_token + self.window_bytes_per_token) or 1)
            return steps * KV_STEP
        if self.bytes_per_token == 0:
            return None
        return (total_bytes - windowed) // self.bytes_per_token // KV_STEP * KV_STEP

    def scaled(self, factor: float) -> KvCost:
        """So many times the bytes, rounded up."""
        return replace(
            self,
            bytes_per_token=_scaled(self.bytes_per_token, factor),
            window_bytes_per_token=_scaled(self.window_bytes_per_token, factor),
            state_bytes=_scaled(self.state_bytes, factor),
            layer_bytes_per_token=_scaled(self.layer_bytes_per_token, factor),
        )

    def _grown_bytes(self, tokens: int) -> int:
        allocated = -(-tokens // KV_STEP) * KV_STEP
        return allocated * self.bytes_per_token + min(allocated, self.window_tokens) * self.window_bytes_per_token


@dataclass(frozen=True)
class KvAdmission:
    """Decides by projected bytes.

    Attributes:
        cost: of a token.
        grant_bytes: what KV may hold; None: no bound.
        transient_bytes: what a step takes on top while it runs, where that counts in the grant.
        reserve_bytes: kept free while rows have company.
    """

    cost: KvCost
    grant_bytes: int | None
    transient_bytes: int = 0
    reserve_bytes: int = 0

    def projected_bytes(self, rows: Sequence[int]) -> int:
        """KV bytes of a batch of rows that grow to these lengths, in tokens."""
        return self.cost.batch_bytes(rows)

    def fits(self, rows: Sequence[int], beside: int = 0) -> bool:
        """Whether the grant holds them in one batch, and so many bytes beside."""
        return self.fits_cohorts([rows], beside)

    def fits_cohorts(self, cohorts: Sequence[Sequence[int]], beside: int = 0) -> bool:
        """Whether the grant holds several batches, and so many bytes beside."""
        if self.grant_bytes is None:
            return True
        total = sum(map(self.cost.batch_bytes, cohorts))
        if sum(map(len, cohorts)) > 1:
            total += max(map(self.cost.copy_bytes, cohorts)) + self.transient_bytes + self.reserve_bytes
        return total + beside <= self.grant_bytes

    def decide(self, row: int, running: Sequence[int], beside: int = 0) -> Decision:
        """May a row that grows to ``row`` tokens join rows that grow to ``running`` tokens, with so many bytes beside?"""
        if self.fits([*running, row], beside):
            return Decision.ADMIT
        return Decision.WAIT if self.fits([row]) else Decision.GROW

    def missing(self, row: int) -> int:
        """Bytes beyond the grant that a row of this length takes alone; 0 where it fits."""
        return 0 if self.grant_bytes is None else max(0, self.cost.row_bytes(row) - self.grant_bytes)

    @property
    def longest_row(self) -> int | None:
        """Tokens of the longest row the grant could hold alone; None: no bound."""
        return None if self.grant_bytes is None else self.cost.longest_row(self.grant_bytes)


def _scaled(size: int, factor: float) -> int:
    return -int(-size * factor // 1)
