"""Text in, parts out."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Sequence

from engines.text.output.answer import MarkedAnswer
from engines.text.output.calls import CallStream
from engines.text.output.channels import ChannelledAnswer
from engines.text.output.parts import Part
from engines.text.output.reader import Reader
from engines.text.reasoning import ReasoningFormat
from engines.text.tool_syntax.harmony import Harmony
from engines.text.tool_syntax.syntax import ToolSyntax
from engines.wire import Tool

__all__ = ["OutputParser", "output_parser"]


class OutputParser:
    """One answer. ``feed`` takes its text in any pieces, ``finish`` says that it is over; both give the parts that are certain.

    The pieces do not matter: joined, the parts are the same for any. Neither method raises, whatever the text is.
    """

    def __init__(self, reader: Reader, calls: CallStream, answer: MarkedAnswer | ChannelledAnswer) -> None:
        self._reader = reader
        self._calls = calls
        self._answer = answer
        self._run: Generator[None, None, None] | None = answer.run()

    @property
    def in_reasoning(self) -> bool:
        """Whether the model is thinking, as far as the text has come: its last token counts as one of reasoning."""
        return self._answer.in_reasoning

    @property
    def in_call(self) -> bool:
        """Whether a call was told and is not complete."""
        return self._calls.is_open

    @property
    def calls_completed(self) -> int:
        """How many calls are complete."""
        return self._calls.completed

    @property
    def calls_complete(self) -> bool:
        """Whether there are calls, and none of those told was left incomplete: what ``tool_calls`` may be said of."""
        return self._calls.completed > 0 and not self._calls.is_open and self._calls.completed == self._calls.started

    def feed(self, text: str) -> list[Part]:
        """The next piece of the answer's text."""
        self._reader.add(text)
        return self._step()

    def finish(self) -> list[Part]:
        """The answer is over, for whatever reason. What was held back is told, as what it is without more."""
        self._reader.end()
        return self._step()

    def _step(self) -> list[Part]:
        if self._run is not None and next(self._run, _OVER) is _OVER:
            self._run = None
        parts, self._calls.parts = self._calls.parts, []
        return parts


_OVER = object()


def output_parser(
    reasoning: ReasoningFormat | None = None,
    syntax: ToolSyntax | None = None,
    tools: Sequence[Tool] = (),
    *,
    starts_in_reasoning: bool = False,
    split: bool = True,
    whole: bool = False,
    random: Callable[[int], bytes] = secrets.token_bytes,
) -> OutputParser:
    """A parser for one answer.

    Args:
        reasoning: how the model marks its thinking; None if it does not.
        syntax: how it writes calls; None if it may not call.
        tools: the functions of the request, which tell types of arguments, and calls from text where no mark does.
        starts_in_reasoning: the prompt opened the thinking (:func:`engines.text.reasoning.opened_by`), or the model is known
            to think without saying so.
        split: False leaves thinking in the content, marks and all; it is counted all the same.
        whole: nobody reads the answer before its end, so that a call is told only when it is complete. One that is not is content.
        random: random bytes for the ids of calls, as many as asked for.
    """
    reader = Reader()
    make_id = (lambda index, name: syntax.call_id(index, name, random)) if syntax else (lambda index, name: "")
    calls = CallStream(reader, make_id, frozenset(tool.name for tool in tools), whole=whole)
    if (reasoning and reasoning.channels) or isinstance(syntax, Harmony):
        split = split and reasoning is not None
        return OutputParser(reader, calls, ChannelledAnswer(calls, starts_in_reasoning, syntax is not None, split))
    return OutputParser(reader, calls, MarkedAnswer(calls, reasoning, starts_in_reasoning, syntax, tuple(tools), split))
