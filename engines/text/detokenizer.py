"""What turns one row's tokens into text, as the text side of a request sees it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Detokenizer"]


class Detokenizer(Protocol):
    """Streaming detokeniser of one row; answers whole code points only."""

    def add(self, token: int) -> str: ...

    def finish(self) -> str: ...
