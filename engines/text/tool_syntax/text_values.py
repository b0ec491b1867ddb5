"""Arguments written as text between marks, whose types only the function's schema tells: the XML-like syntaxes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from engines.text.output.calls import CallStream
from engines.text.output.json_scanner import DEEPEST
from engines.text.output.reader import TextEnded
from engines.text.tool_syntax.lark import Expression, Lark
from engines.text.tool_syntax.schemas import choices_of, types_of
from engines.text.tool_syntax.syntax import ReadCalls

__all__ = ["TextArguments", "text_value", "value_of"]

_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_LONGEST_NUMBER = 400


def value_of(text: str, schema: Mapping[str, Any] | None) -> str:
    """An argument's JSON, from its text and its schema.

    Text that is none of the types that the schema names is a string: nothing that a model wrote is lost, and the function's
    own check says what is wrong with it.
    """
    types = types_of(schema)
    if types == {"string"}:
        return json.dumps(text, ensure_ascii=False)
    word = text.strip()
    for kind in ("null", "boolean", "integer", "number"):
        if kind in types and (scalar := _scalar(word, kind)) is not None:
            return scalar
    if not types or types & {"object", "array", "string"}:
        kind = _json_type(word)
        # Of a string's text only what is quoted is JSON of a string.
        if kind and (not types or kind in types):
            return word
    return json.dumps(text, ensure_ascii=False)


def _scalar(word: str, kind: str) -> str | None:
    if kind == "null":
        return "null" if word.lower() in ("null", "none") else None
    if kind == "boolean":
        return word.lower() if word.lower() in ("true", "false") else None
    if len(word) > _LONGEST_NUMBER or not _NUMBER.match(word):
        return None
    if re.fullmatch(r"[-+]?[0-9]+", word):
        return str(int(word))
    number = float(word)
    if number in (float("inf"), float("-inf")):
        return None
    if number == int(number) and abs(number) < 2**53:
        return str(int(number))
    return None if kind == "integer" else repr(number)


def _json_type(word: str) -> str:
    """Of JSON the type, as far as it matters here; of other text none."""
    if word.count("[") + word.count("{") > DEEPEST * 50:
        return ""
    try:
        value = json.loads(word, parse_constant=_refused)
    except (ValueError, RecursionError):
        return ""
    kinds: dict[type, str] = {dict: "object", list: "array", str: "string"}
    return kinds.get(type(value), "scalar")


def _refused(constant: str) -> None:
    raise ValueError(constant)


class TextArguments:
    """One call's arguments, as they are read; :meth:`read` for each, then :meth:`end`."""

    def __init__(self, calls: CallStream) -> None:
        self._calls = calls
        self._some = False

    def read(self, key: str, schema: Mapping[str, Any] | None, close: str) -> ReadCalls:
        """Reads a value and the mark that closes it. One line break on either side is layout.

        What can only be a string is handed on as it comes, anything else when it is complete.
        """
        calls, reader = self._calls, self._calls.reader
        begin = f"{', ' if self._some else '{'}{json.dumps(key, ensure_ascii=False)}: "
        self._some = True
        if types_of(schema) != {"string"}:
            text = yield from reader.until(close)
            yield from reader.expect(close)
            calls.arguments(begin + value_of(text.removeprefix("\n").removesuffix("\n"), schema))
            return
        calls.arguments(begin + '"')
        yield from reader.accept("\n")
        held = ""
        while True:
            piece, mark = yield from reader.running((close,))
            if not piece and not mark:
                raise TextEnded
            text = held + piece
            held = "\n" if text.endswith("\n") else ""
            calls.arguments(json.dumps(text.removesuffix("\n"), ensure_ascii=False)[1:-1])
            if mark:
                break
        yield from reader.expect(close)
        calls.arguments('"')

    def end(self) -> None:
        """The call has no further arguments."""
        self._calls.arguments("}" if self._some else "{}")
        self._calls.end()


def text_value(lark: Lark, schema: Mapping[str, Any], close: str) -> Expression:
    """The grammar of a value and the mark that closes it. What can only be a string stands there as it is."""
    if types_of(schema) != {"string"}:
        return lark.sequence(lark.json(schema), close)
    if values := choices_of(schema):
        return lark.sequence(lark.either([lark.sequence(str(value)) for value in values]), close)
    return lark.free_text(schema, close)
