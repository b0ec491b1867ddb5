"""A row that decodes, with what it has said."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engines.text.row import Row

__all__ = ["LiveRow"]


@dataclass(slots=True, eq=False)
class LiveRow:
    """One row from its first token on.

    Whatever becomes of its caches, the row can go on from ``row.tokens`` and ``said``: nothing that was reported is ever drawn
    again, and nothing that was not reported is counted.
    """

    row: Row
    said: list[int] = field(default_factory=list)  # tokens reported since it joined
    said_at: float | None = None  # when its last token was; None: it has not said anything yet

    def __post_init__(self) -> None:
        self.said_at = self.row.said_at

    @property
    def length(self) -> int:
        """Tokens of prompt and answer so far; the caches hold one fewer where the last is yet to be read."""
        return len(self.row.tokens) + len(self.said)

    def resuming(self, waits_until: float | None = None) -> Row:
        """The row as it goes on later."""
        return replace(self.row.resuming((*self.row.tokens, *self.said), waits_until), said_at=self.said_at)
