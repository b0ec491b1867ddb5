"""Calls written as Python: ``name(key="value", other=[1, 2])``.

Literals are read as Python has them, and JSON's ``true``, ``false`` and ``null`` as well, since templates render nested values
as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence

from engines.text.output.calls import CallStream
from engines.text.output.reader import Malformed, Read, Reader, TextEnded
from engines.text.tool_syntax.lark import Expression, Lark
from engines.text.tool_syntax.schemas import arguments_of, types_of
from engines.text.tool_syntax.syntax import ReadCalls
from engines.wire import Tool

__all__ = ["python_calls", "read_call", "read_list"]

_NAME = re.compile(r"[\w.]")
_KEY = re.compile(r"\w")
_BARE = re.compile(r"[-+.\w]")
_HEX = re.compile(r"[0-9a-fA-F]")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_CODES = {"x": 2, "u": 4, "U": 8}
_DEEPEST = 50  # levels of nesting


def read_list(calls: CallStream, *, known: bool) -> ReadCalls:
    """Reads ``[f(…), g(…)]``. With ``known``, a call of a function that there is not is Malformed."""
    reader = calls.reader
    yield from reader.expect("[")
    while True:
        yield from reader.space()
        name = yield from reader.word(_NAME)
        if known and name not in calls.names:
            raise Malformed
        yield from reader.space()
        yield from reader.expect("(")
        yield from read_call(calls, name)
        yield from reader.space()
        if not (yield from reader.accept(",")):
            break
    yield from reader.expect("]")


def read_call(calls: CallStream, name: str) -> ReadCalls:
    """Reads the arguments of ``name`` after the opening bracket, and the closing one. Each is handed on when it is complete."""
    reader = calls.reader
    calls.start(name)
    begin = "{"
    yield from reader.space()
    while not (yield from reader.accept(")")):
        key = yield from reader.word(_KEY)
        yield from reader.space()
        yield from reader.expect("=")
        yield from reader.space()
        if not key:
            raise Malformed
        value = yield from _value(reader, 0)
        calls.arguments(f"{begin}{json.dumps(key, ensure_ascii=False)}: {value}")
        begin = ", "
        yield from reader.space()
        if not (yield from reader.accept(",")):
            yield from reader.expect(")")
            break
        yield from reader.space()
    calls.arguments("{}" if begin == "{" else "}")
    calls.end()


def _value(reader: Reader, depth: int) -> Read:
    """Reads one literal; returns its JSON."""
    if depth > _DEEPEST:
        raise Malformed
    char = yield from reader.peek()
    if not char:
        raise TextEnded
    if char in "\"'":
        return json.dumps((yield from _string(reader)), ensure_ascii=False)
    if char in "[(":
        return "[" + ", ".join((yield from _items(reader, depth, "]" if char == "[" else ")", False))) + "]"
    if char == "{":
        return "{" + ", ".join((yield from _items(reader, depth, "}", True))) + "}"
    word = yield from reader.word(_BARE)
    return _WORDS.get(word) or _number(word)


def _number(word: str) -> str:
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError:
        raise Malformed from None
    if number - number != 0:  # infinite, or not a number: JSON has neither
        raise Malformed
    return repr(number)


def _items(reader: Reader, depth: int, close: str, pairs: bool) -> Generator[None, None, list[str]]:
    yield from reader.accept("[", "(", "{")
    items: list[str] = []
    yield from reader.space()
    while not (yield from reader.accept(close)):
        item = yield from _value(reader, depth + 1)
        yield from reader.space()
        if pairs:
            if not item.startswith('"'):
                item = json.dumps(item)
            yield from reader.expect(":")
            yield from reader.space()
            item = f"{item}: {(yield from _value(reader, depth + 1))}"
            yield from reader.space()
        items.append(item)
        if not (yield from reader.accept(",")):
            yield from reader.expect(close)
            break
        yield from reader.space()
    return items


def _string(reader: Reader) -> Read:
    quote = yield from reader.expect('"""', "'''", '"', "'")
    pieces: list[str] = []
    while True:
        pieces.append((yield from reader.until(quote, "\\")))
        if (yield from reader.expect(quote, "\\")) == quote:
            # Halves of a character, as JSON escapes them, are put together; one alone stands for nothing.
            return "".join(pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        char = yield from reader.peek()
        if not char:
            raise TextEnded
        if char in _CODES:
            pieces.append((yield from _code(reader, char)))
        else:
            yield from reader.expect(char)
            pieces.append(_ESCAPES.get(char, char if char in "\\'\"" else f"\\{char}"))


def _code(reader: Reader, kind: str) -> Read:
    yield from reader.expect(kind)
    digits = ""
    while len(digits) < _CODES[kind] and (char := (yield from reader.peek())) and _HEX.match(char):
        digits += yield from reader.expect(char)
    if len(digits) == _CODES[kind] and int(digits, 16) <= 0x10FFFF:
        return chr(int(digits, 16))
    return f"\\{kind}{digits}"


def python_calls(lark: Lark, tools: Sequence[Tool]) -> Expression:
    """The grammar of one call."""
    return lark.either([lark.sequence(f"{tool.name}(", _arguments(lark, tool), ")") for tool in tools])


def _arguments(lark: Lark, tool: Tool) -> Expression:
    arguments = arguments_of(tool)
    if arguments is None:
        any_ = lark.sequence(lark.terminal(r"/[A-Za-z_]\w*/"), "=", lark.json({}))
        return lark.repeated(any_, lark.repeated(", ", any_), times="?")
    return lark.members(
        [
            (lark.sequence(f"{argument.key}=", _literal(lark, argument.schema)), argument.required)
            for argument in arguments
        ],
        ", ",
    )


def _literal(lark: Lark, schema: dict[str, object]) -> Expression:
    if types_of(schema) == {"boolean"} and "enum" not in schema and "const" not in schema:
        return lark.either([lark.sequence("True"), lark.sequence("False")])
    return lark.json(schema)
