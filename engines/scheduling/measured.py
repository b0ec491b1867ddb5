"""What KV really takes, beside what was worked out: the estimate is raised at once, and lowered after enough evidence."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from engines.scheduling.admission import KvCost

__all__ = ["EVIDENCE", "MeasuredCost"]

EVIDENCE = 32  # shapes in succession, all of which must have taken less
_LEAST, _MOST = 0.25, 4.0  # times the estimate: beyond them something else was measured


class MeasuredCost:
    """The cost of a row-token as measured.

    ``estimate`` is of the model's metadata. What is measured replaces it by a factor: the largest of the last EVIDENCE
    shapes of the batches, and at least 1 until there are so many.
    """

    def __init__(self, estimate: KvCost) -> None:
        self._estimate = self._cost = estimate
        self._factor = 1.0
        self._factors: deque[float] = deque(maxlen=EVIDENCE)
        self._shape: tuple[tuple[int, int], ...] = ()
        self._bytes_per_row_token = 0.0

    @property
    def factor(self) -> float:
        """Measured by estimated bytes."""
        return self._factor

    @property
    def cost(self) -> KvCost:
        """The one to project with."""
        return self._cost

    @property
    def bytes_per_row_token(self) -> float:
        """Of the last measurement: held bytes by rows × the longest row's tokens; 0 before the first."""
        return self._bytes_per_row_token

    def observe(self, batches: Sequence[Sequence[int]], held_bytes: int) -> None:
        """Batches whose rows have these lengths now, in tokens, hold so many bytes together. Without rows nothing is learned."""
        batches = [rows for rows in batches if rows and max(rows) > 0]
        row_tokens = sum(len(rows) * max(rows) for rows in batches)
        estimated = sum(map(self._estimate.batch_bytes, batches))
        if estimated == 0:
            return
        self._bytes_per_row_token = held_bytes / row_tokens
        factor = min(max(held_bytes / estimated, _LEAST), _MOST)
        shape = tuple(sorted((len(rows), self._estimate.row_bytes(max(rows))) for rows in batches))
        if shape != self._shape:
            self._shape = shape
            self._factors.append(factor)
        else:
            self._factors[-1] = max(factor, self._factors[-1])
        largest = max(self._factors)
        replaced = largest if len(self._factors) == EVIDENCE else max(1.0, largest)
        if replaced != self._factor:
            self._factor, self._cost = replaced, self._estimate.scaled(replaced)
