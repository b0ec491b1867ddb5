"""The text side of one request: tokens in, deltas out, and the count of both."""

from __future__ import annotations

from collections.abc import Sequence

from engines.text.covering import TokenCover
from engines.text.detokenizer import Detokenizer
from engines.text.echo import EchoedPrompt
from engines.text.output import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Mark,
    OutputParser,
    Part,
    Thought,
)
from engines.text.stops import StopMatcher
from engines.wire import (
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)

__all__ = ["Delta", "TextSequence"]

Delta = TextDelta | ReasoningDelta | ToolCallStarted | ToolCallDelta


class TextSequence:
    """One request from its first token to its last.

    ``completion_tokens`` counts every token drawn for the row: the end-of-sequence token too, and those whose text a stop
    string swallowed. Deltas cover the tokens of which some text has left: neither of those two, unless a stop string begins
    inside of one, nor those that are marks and nothing else. Stop strings are looked for in content alone, which a call ends.

    Args:
        request_id: the request's.
        prompt_tokens: how many it has.
        detokenizer: a new one; it spells out the marks that ``parser`` looks for.
        stops: the stop strings.
        parser: tells content from thinking and calls; None where all is content.
        one_call: the answer is over with its first call.
    """

    def __init__(
        self,
        request_id: int,
        prompt_tokens: int,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        parser: OutputParser | None = None,
        *,
        one_call: bool = False,
    ) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = 0
        self.reasoning_tokens = 0  # of the completion's
        self.cached_tokens = 0  # of the prompt's
        self.admitted = False  # its Admitted event has been given; a preempted row is not admitted twice
        self.echo: EchoedPrompt | None = None
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)
        self._parser = parser
        self._one_call = one_call
        self._called = False  # the one call is complete
        self._cover = TokenCover()
        self._deltas: list[Delta] = []  # not yet taken
        self._ready = ""  # content behind those, past every possible stop
        self._released = 0  # characters of content past every possible stop
        self._ended = False

    @property
    def stop_sequence(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.matched

    @property
    def over(self) -> bool:
        """Whether nothing that the model may still write belongs to the answer."""
        return self._called or self._stops.matched is not None

    @property
    def reason(self) -> FinishReason:
        """Why the answer is over, if the model has not been cut short."""
        calls = self._parser is not None and self._parser.calls_complete
        return "tool_calls" if calls and self._stops.matched is None else "stop"

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            reasoning_tokens=self.reasoning_tokens,
        )

    def push(self, token: int, logprob: TokenLogprob | None = None) -> None:
        """Takes the next token of the text. It may end the answer: ask ``over``."""
        self.completion_tokens += 1
        text = self._detokenizer.add(token)
        self._cover.add(token, len(text), logprob)
        if self._parser is None:
            self._content(text)
            return
        self._read(self._parser.feed(text))
        self.reasoning_tokens += self._parser.in_reasoning

    def end(self, token: int | None = None) -> None:
        """The text has ended, by the end-of-sequence ``token`` (which has no text) or without one."""
        if token is not None:
            self.completion_tokens += 1
        text = self._detokenizer.finish()
        if self._parser is None:
            self._content(text)
        else:
            self._read([*self._parser.feed(text), *self._parser.finish()])
        if not self.over:
            self._release(self._stops.flush())
            self._ended = True

    def _read(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if self.over:
                return
            characters = len(part.source)
            match part:
                case Content(text):
                    self._content(text)
                case Thought(text):
                    self._tell(ReasoningDelta(self.request_id, text, self._cover.part(characters)))
                case CallStart(index, id, name):
                    self._tell(ToolCallStarted(self.request_id, index, id, name, self._cover.part(characters)))
                case CallArguments(index, text):
                    self._tell(ToolCallDelta(self.request_id, index, text, self._cover.part(characters)))
                case CallEnd(complete=complete):
                    self._cover.mark(characters)
                    self._called = complete and self._one_call
                case Mark():
                    self._cover.mark(characters)

    def _content(self, text: str) -> None:
        self._cover.content(len(text))
        self._release(self._stops.push(text))

    def _release(self, text: str) -> None:
        self._ready += text
        self._released += len(text)

    def _tell(self, delta: Delta) -> None:
        """What is no content comes after all content before it: no stop string reaches across."""
        self._release(self._stops.flush())
        self._take_content()
        self._deltas.append(delta)

    def _take_content(self) -> None:
        tokens, logprobs = self._cover.released(self._released, ended=self._ended)
        if self._ready or tokens:
            self._deltas.append(
                TextDelta(request_id=self.request_id, text=self._ready, tokens=tokens, logprobs=logprobs)
            )
            self._ready = ""

    def take(self) -> list[Delta]:
        """What may be sent now. A text that has ended leaves no token behind."""
        self._take_content()
        deltas, self._deltas = self._deltas, []
        return deltas
