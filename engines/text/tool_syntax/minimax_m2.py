"""``<invoke>`` blocks in ``<minimax:tool_call>``: MiniMax M2."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.text.output.calls import CallStream
from engines.text.output.reader import Malformed, Read, Reader
from engines.text.tool_syntax.lark import Expression, Lark
from engines.text.tool_syntax.schemas import arguments_of, schema_of
from engines.text.tool_syntax.syntax import CallRules, ReadCalls, ToolSyntax, Triggers
from engines.text.tool_syntax.text_values import TextArguments, text_value
from engines.wire import Tool

__all__ = ["MiniMaxM2"]

_NAME = re.compile(r"[^\s<>=\"']")
_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"


class MiniMaxM2(ToolSyntax):
    """Each value is text between marks; all calls of a turn are in one block."""

    name = "minimax_m2"
    models = "MiniMax M2, M2.1, M2.5"
    example = (
        '<minimax:tool_call>\n<invoke name="weather">\n'
        '<parameter name="city">Oslo</parameter>\n</invoke>\n</minimax:tool_call>'
    )
    marks = (_OPEN, _CLOSE)
    closes_thinking = True

    def matches(self, template: str) -> bool:
        return _OPEN in template

    def triggers(self, tools: Sequence[Tool]) -> Triggers:
        return Triggers(anywhere=(_OPEN,))

    def read(self, trigger: str, calls: CallStream, tools: Sequence[Tool]) -> ReadCalls:
        reader = calls.reader
        yield from reader.expect(trigger)
        yield from reader.space()
        yield from reader.expect("<invoke name=")
        while True:
            name = yield from _quoted(reader)
            calls.start(name)
            arguments = TextArguments(calls)
            while True:
                yield from reader.space()
                if (yield from reader.expect("<parameter name=", "</invoke>")) == "</invoke>":
                    break
                key = yield from _quoted(reader)
                yield from arguments.read(key, schema_of(tools, name, key), "</parameter>")
            arguments.end()
            yield from reader.space()
            if not (yield from reader.accept("<invoke name=")):
                break
        yield from reader.accept(_CLOSE)

    def rules(self, lark: Lark, tools: Sequence[Tool], parallel: bool) -> CallRules:
        call = lark.rule(lark.either([self._function(lark, tool) for tool in tools]), "</invoke>\n")
        return CallRules(_OPEN, lark.sequence("\n", call), call, _CLOSE)

    def _function(self, lark: Lark, tool: Tool) -> Expression:
        begin = f'<invoke name="{tool.name}">\n'
        arguments = arguments_of(tool)
        if arguments is None:
            value = lark.free_text({}, "</parameter>\n")
            key = lark.terminal(r"/[^\s<>=\"']+/")
            return lark.sequence(begin, lark.repeated('<parameter name="', key, '">', value))
        members = [
            (
                lark.rule(f'<parameter name="{argument.key}">', text_value(lark, argument.schema, "</parameter>\n")),
                argument.required,
            )
            for argument in arguments
        ]
        return lark.sequence(begin, lark.members(members, ""))


def _quoted(reader: Reader) -> Read:
    """A name with or without quotes, and the ``>`` after it."""
    quote = yield from reader.accept('"', "'")
    name = yield from reader.word(_NAME)
    yield from reader.expect(quote + ">")
    if not name:
        raise Malformed
    return name
