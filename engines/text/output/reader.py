"""The model's text, read by code that is written as if all of it were there.

What reads is a chain of generators: where the text ends for now, they yield and go on when more has come. So a syntax is
written top-down, as a parser of a whole text would be, and every character is still looked at as it arrives.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from functools import lru_cache

from engines.text.output.json_scanner import JsonScanner, NotJson

__all__ = ["Malformed", "Marks", "Read", "Reader", "TextEnded"]

Read = Generator[None, None, str]  # reads on as far as the text goes; its result is what the method says


class Malformed(Exception):
    """The text is not what the syntax says. Nothing of it is lost: see :class:`engines.text.output.calls.CallStream`."""


class TextEnded(Exception):
    """The text is over where the syntax says that more follows."""


class Marks:
    """Strings looked for in running text, none a beginning of another, so that the first one seen is certain."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._find = re.compile("|".join(re.escape(mark) for mark in marks) or r"(?!)").search
        self._prefixes = frozenset(mark[:length] for mark in marks for length in range(1, len(mark)))
        self._longest = max(map(len, self._prefixes), default=0)

    def find(self, text: str, at: int) -> tuple[int, str]:
        """Where the first mark at or after ``at`` stands, and the mark; where a mark may be beginning, and "", if none does."""
        if match := self._find(text, at):
            return match.start(), match.group()
        for length in range(min(self._longest, len(text) - at), 0, -1):
            if text[-length:] in self._prefixes:
                return len(text) - length, ""
        return len(text), ""


@lru_cache(256)
def _marks(marks: tuple[str, ...]) -> Marks:
    return Marks(marks)


class Reader:
    """One answer's text: what has come and is not read yet, and what is read and not yet accounted for by a part."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._taken: list[str] = []

    def add(self, text: str) -> None:
        """More text has come."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self) -> None:
        """No more will come."""
        self._ended = True

    def take(self, keep: int = 0) -> str:
        """What was read since the last call, to be some part's source; the last ``keep`` characters stay for the next."""
        text = "".join(self._taken)
        kept = text[len(text) - keep :] if keep else ""
        self._taken = [kept] if kept else []
        return text[: len(text) - keep]

    def put_back(self, text: str) -> None:
        """``text``, which was read and taken, is to be read again."""
        self._text = text + self._text[self._at :]
        self._at = 0

    def _advance(self, count: int) -> str:
        text = self._text[self._at : self._at + count]
        self._at += count
        self._taken.append(text)
        return text

    def peek(self) -> Read:
        """The next character, which stays; "" at the text's end."""
        while self._at >= len(self._text):
            if self._ended:
                return ""
            yield
        return self._text[self._at]

    def space(self) -> Read:
        """Reads whitespace, as much as there is."""
        run = ""
        while (char := (yield from self.peek())) and char.isspace():
            end = self._at + 1
            while end < len(self._text) and self._text[end].isspace():
                end += 1
            run += self._advance(end - self._at)
        return run

    def ahead(self, options: Sequence[str]) -> Read:
        """The longest of ``options`` that comes next, which stays; "" if none does."""
        longest = max(map(len, options), default=0)
        while True:
            rest = self._text[self._at : self._at + longest]
            if self._ended or not any(len(rest) < len(option) and option.startswith(rest) for option in options):
                return max((option for option in options if rest.startswith(option)), key=len, default="")
            yield

    def accept(self, *options: str) -> Read:
        """Reads the longest of ``options`` that comes next; "" if none does."""
        found = yield from self.ahead(options)
        return self._advance(len(found)) if found else ""

    def close(self, mark: str) -> Read:
        """Reads ``mark`` if it comes next, or as much of it as comes before the text's end: an answer that ran out of tokens in
        a mark that says no more than was known already.
        """
        if found := (yield from self.accept(mark)):
            return found
        rest = self._text[self._at :]
        return self._advance(len(rest)) if self._ended and mark.startswith(rest) else ""

    def expect(self, *options: str) -> Read:
        """Reads one of ``options``. Malformed, or TextEnded within one."""
        found = yield from self.accept(*options)
        if not found:
            rest = self._text[self._at :]
            if self._ended and any(option.startswith(rest) for option in options):
                raise TextEnded
            raise Malformed
        return found

    def running(self, marks: tuple[str, ...]) -> Generator[None, None, tuple[str, str]]:
        """Reads text up to the next of ``marks``, or as much as has come.

        Returns that text and the mark at which it stopped, which is not read; "" for both at the text's end.
        """
        compiled = _marks(marks)
        while True:
            end, mark = compiled.find(self._text, self._at)
            if self._ended and not mark:
                end = len(self._text)
            if mark or end > self._at or self._ended:
                return self._advance(end - self._at), mark
            yield

    def until(self, *marks: str, limit: int | None = None) -> Read:
        """Reads and returns text up to one of ``marks``, which is not read. TextEnded; Malformed past ``limit`` characters."""
        pieces: list[str] = []
        length = 0
        while True:
            text, mark = yield from self.running(marks)
            pieces.append(text)
            length += len(text)
            if limit is not None and length > limit:
                raise Malformed
            if mark:
                return "".join(pieces)
            if not text:
                raise TextEnded

    def word(self, pattern: re.Pattern[str], limit: int = 256) -> Read:
        """Reads the characters that each match ``pattern``; "" if the first does not. Malformed past ``limit``."""
        run = ""
        while (char := (yield from self.peek())) and pattern.match(char):
            run += self._advance(1)
            if len(run) > limit:
                raise Malformed
        return run

    def json(self, scanner: JsonScanner) -> Read:
        """Reads on in ``scanner``'s value, as far as the text has come; returns the JSON to pass on. Malformed, TextEnded."""
        if not (yield from self.peek()):
            raise TextEnded
        try:
            end, out = scanner.scan(self._text, self._at)
        except NotJson:
            raise Malformed from None
        self._advance(end - self._at)
        return out

    def json_value(self) -> Read:
        """Reads one JSON value, all of it; returns it as valid JSON."""
        scanner = JsonScanner()
        pieces: list[str] = []
        while not scanner.done:
            pieces.append((yield from self.json(scanner)))
        return "".join(pieces)
