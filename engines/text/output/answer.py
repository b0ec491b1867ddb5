"""An answer's text: thinking at its beginning, then content with calls in it."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from engines.text.output.calls import CallStream
from engines.text.output.parts import Content, Mark, Thought
from engines.text.output.reader import Malformed, Read, TextEnded
from engines.text.reasoning import ReasoningFormat
from engines.text.tool_syntax.syntax import ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["MarkedAnswer"]


class MarkedAnswer:
    """Reads one answer by its marks.

    A call that turns out not to be one is text again, and reading goes on at the last mark in it: so no character is read
    more than twice.

    Args:
        calls: where parts go.
        reasoning: how the model marks its thinking; None where it does not, or nobody asks.
        starts_in_reasoning: the opening mark came before the answer, or is known to be left out.
        syntax: how the model writes calls; None where it may not.
        tools: the functions that there are.
        split: False leaves thinking and its marks in the content.
    """

    def __init__(
        self,
        calls: CallStream,
        reasoning: ReasoningFormat | None,
        starts_in_reasoning: bool,
        syntax: ToolSyntax | None,
        tools: Sequence[Tool],
        split: bool,
    ) -> None:
        self.in_reasoning = reasoning is not None and starts_in_reasoning
        self._calls = calls
        self._reader = calls.reader
        self._syntax = syntax
        self._tools = tools
        self._opens = reasoning.opens if reasoning else ()
        self._closes = reasoning.closes if reasoning else ()
        self._ignored = reasoning.ignored if reasoning else ()
        triggers = syntax.triggers(tools) if syntax else Triggers()
        self._triggers = triggers.anywhere
        # A closing mark that nothing opened, before any text: thinking that was over before it began.
        self._at_beginning = self._opens + self._closes + self._ignored + triggers.anywhere + triggers.first
        inside = self._opens if reasoning and reasoning.anywhere else ()
        self._in_content = inside + self._ignored + triggers.anywhere
        self._in_thought = self._closes + (triggers.anywhere if syntax and syntax.closes_thinking else ())
        self._thought = Thought if split else Content
        self._mark = Mark if split else Content

    def run(self) -> Generator[None, None, None]:
        """Reads the answer to its end."""
        after_mark = False
        if self.in_reasoning:
            yield from self._think(opened=True)
            after_mark = True
        at_beginning = True
        while True:
            if at_beginning:
                yield from self._reader.space()
                if after_mark:
                    self._pass(self._mark)
                hit = yield from self._reader.ahead(self._at_beginning)
            else:
                hit = yield from self._talk()
            if not hit:
                if not (yield from self._reader.peek()):
                    self._pass(Content)
                    return
                at_beginning = False
                continue
            after_mark = True
            if hit in self._opens:
                yield from self._think(opened=False)
                at_beginning = True
            elif hit in self._closes or hit in self._ignored:
                yield from self._reader.expect(hit)
                self._pass(self._mark)
                at_beginning = True
            else:
                at_beginning = yield from self._call(hit, Content)

    def _talk(self) -> Read:
        """Content up to the next mark, which it returns; whitespace before it is left to the mark."""
        return (yield from self._running(self._in_content, Content, Content))

    def _think(self, opened: bool) -> Generator[None, None, None]:
        """Thinking, with both its marks."""
        reader = self._reader
        if opened:
            yield from reader.space()
            yield from reader.accept(*self._opens)
        else:
            yield from reader.expect(*self._opens)
        self.in_reasoning = True
        yield from reader.space()
        self._pass(self._mark)
        while mark := (yield from self._running(self._in_thought, self._thought, self._mark)):
            if mark in self._closes:
                yield from reader.expect(mark)
                self._pass(self._mark)
                break
            if (yield from self._call(mark, self._thought)):
                break
        self.in_reasoning = False

    def _running(self, marks: tuple[str, ...], text: type[Content | Thought], rest: type[Content | Mark]) -> Read:
        reader = self._reader
        while True:
            piece, mark = yield from reader.running(marks)
            if stripped := piece.rstrip():
                self._calls.parts.append(text(reader.take(keep=len(piece) - len(stripped))))
            if mark:
                return mark
            if not piece:
                self._pass(rest)
                return ""

    def _call(self, trigger: str, otherwise: type[Content | Thought]) -> Generator[None, None, bool]:
        """The call or calls that begin here. Returns whether there were any; if not, they are ``otherwise``."""
        calls, reader = self._calls, self._reader
        assert self._syntax is not None
        begun = calls.started
        try:
            yield from self._syntax.read(trigger, calls, self._tools)
            return True
        except (Malformed, TextEnded) as failure:
            source = reader.take()
            if isinstance(failure, TextEnded) and calls.is_open:
                calls.abandon(source)
                return True
            untold = not calls.is_open and calls.started == begun
            beyond = source.find(trigger) + 1 if untold else 0
            again = max((source.rfind(mark, beyond) for mark in self._triggers), default=-1)
            if again >= 0:
                reader.put_back(source[again:])
                source = source[:again]
            if calls.is_open:
                calls.abandon()
            if source:
                calls.parts.append(otherwise(source))
            return False

    def _pass(self, kind: type[Content | Mark]) -> None:
        """What was read so far and is in no part becomes one."""
        if text := self._reader.take():
            self._calls.parts.append(kind(text))
