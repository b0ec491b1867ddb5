"""An answer in channels, as gpt-oss writes it: ``analysis`` is thinking, ``commentary to=functions.f`` a call, the rest content.

Source: OpenAI's description of the harmony response format. A message is ``<|start|>role<|channel|>name<|message|>text<|end|>``;
the prompt has the first ``<|start|>assistant``. The recipient stands in the role's part of the header or the channel's.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from engines.text.output.calls import CallStream
from engines.text.output.parts import Content, Mark, Thought
from engines.text.output.reader import Malformed, TextEnded

__all__ = ["ChannelledAnswer"]

_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_NEXT = (*_ENDS, "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_LONGEST_HEADER = 512


class ChannelledAnswer:
    """Reads one answer by its channels.

    Args:
        calls: where parts go.
        starts_in_reasoning: the prompt ends in the analysis channel.
        may_call: whether a message to a function is a call; otherwise it is content.
        split: False leaves thinking and its headers in the content.
    """

    def __init__(self, calls: CallStream, starts_in_reasoning: bool, may_call: bool, split: bool) -> None:
        self.in_reasoning = starts_in_reasoning
        self._calls = calls
        self._reader = calls.reader
        self._may_call = may_call
        self._split = split

    def run(self) -> Generator[None, None, None]:
        """Reads the answer to its end."""
        reader = self._reader
        if self.in_reasoning:
            yield from self._text(Thought if self._split else Content)
        elif (yield from reader.ahead((" to=", "to="))):
            yield from self._message()  # the header goes on where the prompt's "<|start|>assistant" ends
        while (yield from reader.peek()):
            hit = yield from reader.ahead(_NEXT)
            if hit in _ENDS:
                yield from reader.expect(hit)
                self._pass(Mark)
            elif hit:
                yield from self._message()
            else:
                yield from self._text(Content)

    def _message(self) -> Generator[None, None, None]:
        reader = self._reader
        try:
            header = yield from reader.until("<|message|>", limit=_LONGEST_HEADER)
        except (Malformed, TextEnded):
            self._pass(Content)
            return
        yield from reader.expect("<|message|>")
        _, _, channel = header.rpartition("<|channel|>")
        recipient = _RECIPIENT.search(header)
        if recipient and self._may_call:
            yield from self._call(recipient[1].removeprefix("functions."))
        elif channel.strip().startswith("analysis") and not recipient:
            self.in_reasoning = True
            self._pass(Mark if self._split else Content)
            yield from self._text(Thought if self._split else Content)
        elif recipient:
            yield from self._text(Content)
        else:
            self._pass(Mark)
            yield from self._text(Content)

    def _call(self, name: str) -> Generator[None, None, None]:
        calls, reader = self._calls, self._reader
        try:
            yield from reader.space()
            yield from calls.json_arguments(name)
            calls.end()
        except (Malformed, TextEnded) as failure:
            if isinstance(failure, TextEnded) and calls.is_open:
                calls.abandon(reader.take())
                return
            if calls.is_open:
                calls.abandon()
            self._pass(Content)
            yield from self._text(Content)

    def _text(self, kind: type[Content | Thought]) -> Generator[None, None, None]:
        """A message's text. The mark that ends it is passed over with those of thinking, and left for others."""
        reader = self._reader
        while True:
            piece, mark = yield from reader.running(_NEXT)
            self._pass(kind)
            if mark or not piece:
                break
        if self.in_reasoning:
            self.in_reasoning = False
            if (yield from reader.accept(*_ENDS)):
                self._pass(Mark if self._split else Content)

    def _pass(self, kind: type[Content | Thought | Mark]) -> None:
        if text := self._reader.take():
            self._calls.parts.append(kind(text))
