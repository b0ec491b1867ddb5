"""The text side of one request: tokens in, deltas out, and the count of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engines.text.stops import StopMatcher
from engines.wire import TextDelta, Usage

__all__ = ["Detokenizer", "TextSequence"]


class Detokenizer(Protocol):
    """Streaming detokeniser of one row; answers whole code points only."""

    def add(self, token: int) -> str: ...

    def finish(self) -> str: ...


class TextSequence:
    """One request from its first token to its last.

    ``completion_tokens`` counts every token drawn for the row: the end-of-sequence token too, and those whose text a stop
    string swallowed.
    """

    def __init__(self, request_id: int, prompt_tokens: int, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self.admitted = False  # its Admitted event has been given; a preempted row is not admitted twice
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)
        self._ready = ""  # past every possible stop, not yet taken
        self._covered: list[int] = []  # tokens since the last delta

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.matched

    @property
    def usage(self) -> Usage:
        return Usage(prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens)

    def push(self, token: int) -> None:
        """Takes the next token of the text. It may complete a stop string: ask ``stop_sequence``."""
        self.completion_tokens += 1
        self._covered.append(token)
        self._ready += self._stops.push(self._detokenizer.add(token))

    def end(self, token: int | None = None) -> None:
        """The text has ended, by the end-of-sequence ``token`` (which has no text) or without one."""
        if token is not None:
            self.completion_tokens += 1
        self._ready += self._stops.push(self._detokenizer.finish())
        if self._stops.matched is None:
            self._ready += self._stops.flush()

    def take(self) -> TextDelta | None:
        """What may be sent now, None where there is nothing."""
        if not self._ready:
            return None
        delta = TextDelta(request_id=self.request_id, text=self._ready, tokens=tuple(self._covered))
        self._ready = ""
        self._covered = []
        return delta
