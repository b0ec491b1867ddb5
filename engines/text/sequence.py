"""The text side of one request: tokens in, deltas out, and the count of both."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engines.text.detokenizer import Detokenizer
from engines.text.echo import EchoedPrompt
from engines.text.stops import StopMatcher
from engines.wire import TextDelta, TokenLogprob, Usage

__all__ = ["TextSequence"]


@dataclass(frozen=True)
class _Covered:
    """A token whose text has not left yet. ``start``: characters of the answer before it; a code point counts to the token
    that completes it."""

    start: int
    token: int
    logprob: TokenLogprob | None


class TextSequence:
    """One request from its first token to its last.

    ``completion_tokens`` counts every token drawn for the row: the end-of-sequence token too, and those whose text a stop
    string swallowed. Deltas cover the tokens of which some text has left: neither of those two, unless a stop string begins
    inside of one.
    """

    def __init__(self, request_id: int, prompt_tokens: int, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self.cached_tokens = 0  # of the prompt's
        self.admitted = False  # its Admitted event has been given; a preempted row is not admitted twice
        self.echo: EchoedPrompt | None = None
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)
        self._ready = ""  # past every possible stop, not yet taken
        self._pushed = 0  # characters of the answer so far
        self._released = 0  # of those, what stands before every possible stop
        self._ended = False
        self._covered: deque[_Covered] = deque()

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.matched

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
        )

    def push(self, token: int, logprob: TokenLogprob | None = None) -> None:
        """Takes the next token of the text. It may complete a stop string: ask ``stop_sequence``."""
        self.completion_tokens += 1
        self._covered.append(_Covered(self._pushed, token, logprob))
        text = self._detokenizer.add(token)
        self._pushed += len(text)
        self._release(self._stops.push(text))

    def end(self, token: int | None = None) -> None:
        """The text has ended, by the end-of-sequence ``token`` (which has no text) or without one."""
        if token is not None:
            self.completion_tokens += 1
        self._release(self._stops.push(self._detokenizer.finish()))
        if self._stops.matched is None:
            self._release(self._stops.flush())
            self._ended = True

    def _release(self, text: str) -> None:
        self._ready += text
        self._released += len(text)

    def take(self) -> TextDelta | None:
        """What may be sent now, None where there is nothing. A text that has ended leaves no token behind."""
        covered: list[_Covered] = []
        while self._covered and (self._ended or self._covered[0].start < self._released):
            covered.append(self._covered.popleft())
        if not self._ready and not covered:
            return None
        text, self._ready = self._ready, ""
        return TextDelta(
            request_id=self.request_id,
            text=text,
            tokens=tuple(each.token for each in covered),
            logprobs=tuple(each.logprob for each in covered if each.logprob is not None),
        )
