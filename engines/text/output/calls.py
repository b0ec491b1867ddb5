"""The calls of one answer, as a syntax finds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator

from engines.text.output.json_scanner import JsonScanner
from engines.text.output.parts import CallArguments, CallEnd, CallStart, Content, Mark, Part
from engines.text.output.reader import Malformed, Reader

__all__ = ["CallStream"]


class CallStream:
    """Turns what a syntax reads into the parts of calls.

    A syntax says :meth:`start` when the function's name is certain, :meth:`arguments` as they come, and :meth:`end` when the
    call is complete, closing mark or not. If it raises instead, what it read since its last part is text of the answer.

    Args:
        reader: the answer's text.
        make_id: from a call's index and name to its id.
        names: the functions that there are.
        whole: calls are handed on only when complete, and one that is not becomes content; nobody reads them earlier.
    """

    def __init__(
        self, reader: Reader, make_id: Callable[[int, str], str], names: frozenset[str], *, whole: bool = False
    ) -> None:
        self.reader = reader
        self.names = names
        self.parts: list[Part] = []  # emptied by OutputParser
        self.started = 0  # calls that were handed on, complete or not
        self.completed = 0
        self.is_open = False
        self._make_id = make_id
        self._whole = whole
        self._held: list[Part] = []  # of the open call, with ``whole``

    def start(self, name: str, call_id: str | None = None) -> None:
        """A call begins. ``call_id`` is the id that the model gave it, where it gave one. Malformed without a name."""
        if not name or self.is_open:
            raise Malformed
        check_characters(name)
        self.is_open = True
        index = self.started
        self._emit(CallStart(index, call_id or self._make_id(index, name), name, self.reader.take()))

    def arguments(self, text: str) -> None:
        """The next fragment of the open call's arguments."""
        if text:
            self._emit(CallArguments(self.started, text, self.reader.take()))

    def end(self) -> None:
        """The open call is complete. What follows of its closing marks belongs to the next part."""
        self._emit(CallEnd(self.started, True, self.reader.take()))
        self.parts += self._held
        self._close()
        self.completed += 1

    def abandon(self, source: str = "") -> None:
        """The open call is not one after all, or the text ended in it; ``source`` is its text that no part accounts for."""
        if self._whole:
            text = "".join(part.source for part in self._held) + source
            self._held = []
            self.is_open = False
            if text:
                self.parts.append(Content(text))
            return
        self._emit(CallEnd(self.started, False, source))
        self._close()

    def mark(self) -> None:
        """What was read is no call and for no reader."""
        self.parts.append(Mark(self.reader.take()))

    def json_arguments(self, name: str, call_id: str | None = None) -> Generator[None, None, None]:
        """Starts a call whose arguments come next as a JSON object, or as a string that holds one, or as ``null``.

        The call is not ended. Malformed if they are anything else.
        """
        first = yield from self.reader.peek()
        if first == "{":
            self.start(name, call_id)
            scanner = JsonScanner()
            while not scanner.done:
                self.arguments((yield from self.reader.json(scanner)))
            return
        if first and first not in '"n':
            raise Malformed
        arguments = object_arguments((yield from self.reader.json_value()))
        self.start(name, call_id)
        self.arguments(arguments)

    def _emit(self, part: Part) -> None:
        (self._held if self._whole else self.parts).append(part)

    def _close(self) -> None:
        self._held = []
        self.is_open = False
        self.started += 1


def object_arguments(text: str) -> str:
    """Arguments as a JSON object's text, from JSON that is one, or a string that holds one, or ``null``. Malformed if neither."""
    value = _loads(text)
    if isinstance(value, str):
        text = value
        value = _loads(text) if text.strip() else None
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise Malformed
    check_characters(text)
    return text


def check_characters(text: str) -> None:
    """Malformed if there is half a character in it, of an escape like ``\\ud83d`` alone: no such text can be sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Malformed from None


def _loads(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Malformed from None
