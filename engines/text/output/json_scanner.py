"""One JSON value, checked character by character as it arrives.

It is read leniently where models slip and the meaning is plain, and what is passed on is valid JSON all the same (RFC 8259):
a raw control character in a string is escaped, the backslash of an unknown escape is doubled (``\\d`` of a regular expression),
and ``\\'`` is an apostrophe.
"""

from __future__ import annotations

import re
from enum import Enum, auto

__all__ = ["DEEPEST", "JsonScanner", "NotJson"]

DEEPEST = 200  # levels of nesting; readers of JSON give up at some depth, most at 1000 or fewer

_SPACE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_BARE = re.compile(r"[-+.0-9A-Za-z]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
_LONGEST_BARE = 400  # characters of a number or a literal
_HEX = frozenset("0123456789abcdefABCDEF")


class NotJson(Exception):
    """The text stopped being JSON."""


class _Awaits(Enum):
    VALUE = auto()
    VALUE_OR_END = auto()  # after "["
    KEY = auto()
    KEY_OR_END = auto()  # after "{"
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()  # inside a string, a key or a value
    ESCAPE = auto()  # after a backslash in a string; the escape is in _held
    BARE = auto()  # inside a number or a literal, which is in _held


class JsonScanner:
    """The position within one value. Each character is looked at once, and the state is as large as the nesting is deep."""

    def __init__(self) -> None:
        self.done = False  # the value is complete
        self._awaits = _Awaits.VALUE
        self._open: list[str] = []  # the brackets that are open
        self._is_key = False
        self._held = ""

    def scan(self, text: str, at: int) -> tuple[int, str]:
        """Reads ``text`` from ``at`` on, to its end or the value's, or to a character that cannot stand there.

        Returns where it stopped and the JSON to pass on, which lacks what is not complete yet (half an escape, a number).
        NotJson if it is the first character that cannot stand there.
        """
        out: list[str] = []
        begin, end = at, len(text)
        while at < end and not self.done:
            try:
                at = self._step(text, at, out)
            except NotJson:
                if at == begin:
                    raise
                break
        return at, "".join(out)

    def _step(self, text: str, at: int, out: list[str]) -> int:
        if self._awaits is _Awaits.STRING:
            return self._string(text, at, out)
        if self._awaits is _Awaits.ESCAPE:
            return self._escape(text, at, out)
        if self._awaits is _Awaits.BARE:
            return self._bare(text, at, out)
        self._structure(text[at], out)
        return at + 1

    def _structure(self, char: str, out: list[str]) -> None:
        awaits = self._awaits
        if char in _SPACE:
            out.append(char)
        elif char == '"' and awaits is not _Awaits.COLON and awaits is not _Awaits.COMMA_OR_END:
            self._is_key = awaits in (_Awaits.KEY, _Awaits.KEY_OR_END)
            self._awaits = _Awaits.STRING
            out.append(char)
        elif char in "{[" and awaits in (_Awaits.VALUE, _Awaits.VALUE_OR_END):
            if len(self._open) == DEEPEST:
                raise NotJson
            self._open.append(char)
            self._awaits = _Awaits.KEY_OR_END if char == "{" else _Awaits.VALUE_OR_END
            out.append(char)
        elif char in "}]" and self._closes(char):
            self._open.pop()
            out.append(char)
            self._value_ends()
        elif char == "," and awaits is _Awaits.COMMA_OR_END:
            self._awaits = _Awaits.KEY if self._open[-1] == "{" else _Awaits.VALUE
            out.append(char)
        elif char == ":" and awaits is _Awaits.COLON:
            self._awaits = _Awaits.VALUE
            out.append(char)
        elif char in "-0123456789tfn" and awaits in (_Awaits.VALUE, _Awaits.VALUE_OR_END):
            self._awaits = _Awaits.BARE
            self._held = char
        else:
            raise NotJson

    def _closes(self, char: str) -> bool:
        opened, empty = ("{", _Awaits.KEY_OR_END) if char == "}" else ("[", _Awaits.VALUE_OR_END)
        return self._awaits in (_Awaits.COMMA_OR_END, empty) and self._open[-1:] == [opened]

    def _value_ends(self) -> None:
        self._awaits = _Awaits.COMMA_OR_END
        self.done = not self._open

    def _string(self, text: str, at: int, out: list[str]) -> int:
        if run := _PLAIN.match(text, at):
            out.append(run.group())
            return run.end()
        char = text[at]
        if char == "\\":
            self._awaits, self._held = _Awaits.ESCAPE, ""
        elif char == '"':
            out.append(char)
            if self._is_key:
                self._awaits = _Awaits.COLON
            else:
                self._value_ends()
        else:
            out.append(f"\\u{ord(char):04x}")
        return at + 1

    def _escape(self, text: str, at: int, out: list[str]) -> int:
        char = text[at]
        if not self._held:
            if char == "u":
                self._held = char
                return at + 1
            self._awaits = _Awaits.STRING
            if char in '"\\/bfnrt':
                out.append("\\" + char)
            elif char == "'":
                out.append(char)
            else:  # the character is read again, as text
                out.append("\\\\")
                return at
            return at + 1
        if char not in _HEX:
            out.append("\\\\" + self._held)
            self._awaits = _Awaits.STRING
            return at
        self._held += char
        if len(self._held) == len("u0000"):
            out.append("\\" + self._held)
            self._awaits = _Awaits.STRING
        return at + 1

    def _bare(self, text: str, at: int, out: list[str]) -> int:
        if run := _BARE.match(text, at):
            self._held += run.group()
            if len(self._held) > _LONGEST_BARE:
                raise NotJson
            return run.end()
        if self._held not in ("true", "false", "null") and not _NUMBER.match(self._held):
            raise NotJson
        out.append(self._held)
        self._value_ends()
        return at
