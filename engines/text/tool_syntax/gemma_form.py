"""Gemma's own notation: ``call:name{key:value}`` with bare keys, and strings between two marks of a kind."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar

from engines.text.output.calls import CallStream
from engines.text.output.reader import Malformed, Read, Reader, TextEnded
from engines.text.tool_syntax.lark import Expression, Lark
from engines.text.tool_syntax.schemas import Argument, arguments_of, choices_of, types_of
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.wire import Tool

__all__ = ["GemmaForm"]

_NAME = re.compile(r"[\w.-]")
_KEY = re.compile(r"[^\s:,{}\[\]<>]")
_BARE = re.compile(r"[^,{}\[\]<>\n]")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_DEEPEST = 50


class GemmaForm(ToolSyntax):
    """Subclasses say which marks are around a call and around a string.

    Attributes:
        opens: the mark before a call.
        closes: the mark after it.
        quote: the mark on both sides of a string.
    """

    opens: ClassVar[str]
    closes: ClassVar[str]
    quote: ClassVar[str]
    closes_thinking = True

    def matches(self, template: str) -> bool:
        return self.opens in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=(self.opens,))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        while True:
            yield from reader.expect("call:")
            name = yield from reader.word(_NAME)
            yield from reader.space()
            yield from reader.expect("{")
            calls.start(name)
            begin = "{"
            yield from reader.space()
            while not (yield from reader.accept("}")):
                pair = yield from self._pair(reader, 0)
                calls.arguments(begin + pair)
                begin = ", "
                if not (yield from reader.accept(",")):
                    yield from reader.expect("}")
                    break
                yield from reader.space()
            calls.arguments("{}" if begin == "{" else "}")
            calls.end()
            yield from reader.space()
            if not (yield from reader.ahead(("call:",))):
                break
        yield from reader.accept(self.closes)

    def _pair(self, reader: Reader, depth: int) -> Read:
        if (yield from reader.accept(self.quote)):
            key = yield from reader.until(self.quote, limit=256)
            yield from reader.expect(self.quote)
        else:
            key = (yield from reader.word(_KEY)).strip("\"'")
        yield from reader.space()
        yield from reader.expect(":")
        yield from reader.space()
        if not key:
            raise Malformed
        value = yield from self._value(reader, depth)
        yield from reader.space()
        return f"{json.dumps(key, ensure_ascii=False)}: {value}"

    def _value(self, reader: Reader, depth: int) -> Read:
        if depth > _DEEPEST:
            raise Malformed
        if (yield from reader.accept(self.quote)):
            text = yield from reader.until(self.quote)
            yield from reader.expect(self.quote)
            return json.dumps(text, ensure_ascii=False)
        char = yield from reader.peek()
        if char == '"':
            return (yield from reader.json_value())
        if char in ("{", "["):
            yield from reader.expect(char)
            items = yield from self._items(reader, depth + 1, char == "{")
            return f"{char}{', '.join(items)}{'}' if char == '{' else ']'}"
        word = (yield from reader.word(_BARE, limit=1024)).strip()
        if not (yield from reader.peek()):
            raise TextEnded
        if not word:
            raise Malformed
        if word in ("true", "false", "null") or _NUMBER.fullmatch(word):
            return word
        return json.dumps(word, ensure_ascii=False)

    def _items(self, reader: Reader, depth: int, pairs: bool) -> Generator[None, None, list[str]]:
        close = "}" if pairs else "]"
        items: list[str] = []
        yield from reader.space()
        while not (yield from reader.accept(close)):
            items.append((yield from (self._pair if pairs else self._value)(reader, depth)))
            yield from reader.space()
            if not (yield from reader.accept(",")):
                yield from reader.expect(close)
                break
            yield from reader.space()
        return items

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        functions = [lark.sequence(f"call:{tool.name}{{", self._arguments(lark, tool), "}") for tool in tools]
        first = lark.rule(lark.either(functions), self.closes)
        return CallRules(self.opens, first, lark.sequence(self.opens, first))

    def _arguments(self, lark: Lark, tool: Tool) -> Expression:
        arguments = arguments_of(tool)
        return self._any_pairs(lark) if arguments is None else self._members(lark, arguments)

    def _members(self, lark: Lark, arguments: Sequence[Argument]) -> Expression:
        members = [
            (lark.sequence(f"{argument.key}:", self._literal(lark, argument.schema)), argument.required)
            for argument in arguments
        ]
        return lark.members(members, ",")

    def _literal(self, lark: Lark, schema: Mapping[str, Any]) -> Expression:
        types = types_of(schema)
        if types == {"string"}:
            if values := choices_of(schema):
                choices = lark.either([lark.sequence(str(value)) for value in values])
                return lark.sequence(self.quote, choices, self.quote)
            return lark.sequence(self.quote, lark.free_text(schema, self.quote))
        if types and not types & {"string", "object", "array"}:
            return lark.json(schema)
        if types == {"object"}:
            inner = arguments_of(Tool(name="", parameters=dict(schema)))
            return lark.sequence("{", self._any_pairs(lark) if inner is None else self._members(lark, inner), "}")
        return self._any_value(lark)

    def _any_pairs(self, lark: Lark) -> Expression:
        pair = lark.rule(lark.terminal(r"/[A-Za-z_]\w*/"), ":", self._any_value(lark))
        return lark.repeated(pair, lark.repeated(",", pair), times="?")

    def _any_value(self, lark: Lark) -> Expression:
        """Any value; of what is nested only the form is kept."""
        value = lark.later()
        pair = lark.rule(lark.terminal(r"/[A-Za-z_]\w*/"), ":", value)
        return lark.define(
            value,
            [
                lark.sequence(self.quote, lark.free_text({}, self.quote)),
                lark.json({"type": ["number", "boolean", "null"]}),
                lark.sequence("[", lark.repeated(value, lark.repeated(",", value), times="?"), "]"),
                lark.sequence("{", lark.repeated(pair, lark.repeated(",", pair), times="?"), "}"),
            ],
        )
