"""Which rows may hold KV cache, within the bytes granted.

A batch holds rows × its longest row, so that is what is projected, with the length rounded up to what the caches allocate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["KV_STEP", "Decision", "KvAdmission"]

KV_STEP = 256  # tokens; mlx-lm's caches grow in such steps


class Decision(Enum):
    """What becomes of the row at the head of the queue."""

    ADMIT = "admit"  # its prefill may begin
    WAIT = "wait"  # it fits alone: when rows have left, or the grant has grown
    REFUSE = "refuse"  # it would not fit the grant alone


@dataclass(frozen=True)
class KvAdmission:
    """Decides by projected bytes.

    Attributes:
        bytes_per_token: KV bytes of one token of one row, over all layers.
        grant_bytes: what KV may hold; None: no bound.
    """

    bytes_per_token: int
    grant_bytes: int | None

    def projected_bytes(self, rows: Sequence[int]) -> int:
        """KV bytes of a batch of rows that grow to these lengths, in tokens."""
        longest = max(rows, default=0)
        return len(rows) * (-(-longest // KV_STEP) * KV_STEP) * self.bytes_per_token

    def fits(self, rows: Sequence[int]) -> bool:
        return self.grant_bytes is None or self.projected_bytes(rows) <= self.grant_bytes

    def decide(self, row: int, running: Sequence[int]) -> Decision:
        """May a row that grows to ``row`` tokens join rows that grow to ``running`` tokens?"""
        if self.fits([*running, row]):
            return Decision.ADMIT
        return Decision.WAIT if self.fits([row]) else Decision.REFUSE

    @property
    def longest_row(self) -> int | None:
        """Tokens of the longest row the grant could hold alone; None: no bound."""
        if self.grant_bytes is None or self.bytes_per_token == 0:
            return None
        return self.grant_bytes // self.bytes_per_token // KV_STEP * KV_STEP
